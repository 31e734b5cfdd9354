"""Plan for measuring the answers to `sample.prompts`: checked and digested before training, the same on every rank."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from overtone.finetune.checkpointing.retention import BestBy
from overtone.finetune.config import Config
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import SAMPLED
from overtone.finetune.recipe import PreparedMetrics, Recipe


@dataclass(frozen=True)
class SamplePlan:
    """The plan of a run. The default values are those of a run without samples."""

    digest: str | None = None
    """SHA-256 of all that the metrics depend on besides the weights; None without samples."""
    prepared: PreparedMetrics | None = None
    """Inputs of the recipe's metrics; None: there are only the means of `Answer.numbers`, or nothing is measured."""
    decides: bool = False
    """True if `checkpoint.best_by` is a metric of samples. Then every due checkpoint is measured, and kept until that is done."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, found: dict[str, Any]) -> SamplePlan:
        """Restore a plan from the result of `as_json`, after it was sent to another rank."""
        prepared = found["prepared"]
        return cls(**{**found, "prepared": None if prepared is None else parse_prepared(prepared)})


def parse_prepared(found: dict[str, Any]) -> PreparedMetrics:
    """Return the prepared metrics that were stored as JSON."""
    return PreparedMetrics(**{**found, "names": tuple(found["names"])})


def prepare_plan(config: Config, recipe: Recipe) -> SamplePlan:
    """Find and check what the measurement of samples needs. Raises `UserError` for a missing recognizer or encoder, and if
    `checkpoint.best_by` is none of the metrics."""
    if config.sample.every is None:
        return SamplePlan()
    best_by, metrics = BestBy.parse(config.checkpoint.best_by), recipe.inference.metrics
    prepared = None if metrics is None else metrics.prepare(config)
    if best_by.is_sampled and prepared is not None and best_by.metric.removeprefix(SAMPLED) not in prepared.names:
        raise unknown_metric(best_by, prepared.names)
    settings = {} if prepared is None else prepared.settings
    content = [config.sample.prompts, settings]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return SamplePlan(digest, prepared, best_by.is_sampled)


def unknown_metric(best_by: BestBy, known: tuple[str, ...]) -> UserError:
    """Return the error of a `checkpoint.best_by` that is not measured."""
    listed = ", ".join(f"{SAMPLED}{name}" for name in sorted(known)) or "none"
    return UserError(f"checkpoint.best_by: {best_by.metric} is not a metric of the samples; these are {listed}")
