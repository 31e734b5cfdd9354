"""What measuring samples needs is checked before training, and the same on every rank."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from overtone.finetune.config import Config
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import MeasuredAnswers, PreparedMetrics, Recipe, SampleMetrics
from overtone.finetune.training.sample_metrics_preparation import SamplePlan, prepare_plan
from tests.finetune import tiny

ON = (("sample.every", "5"), ("sample.prompts", "[a, b]"))


def measuring(settings: dict[str, str]) -> Recipe:
    """A recipe that measures `wer`."""
    prepared = PreparedMetrics(("wer",), settings, {"asr": "/models/small"}, 100)
    metrics = SampleMetrics(lambda _: prepared, lambda *_: MeasuredAnswers({}, []))
    return replace(tiny.RECIPE, inference=replace(tiny.RECIPE.inference, metrics=metrics))


def plan(config: Config, **settings: str) -> SamplePlan:
    return prepare_plan(config, measuring(settings))


def test_a_run_without_samples_has_no_plan(tmp_path: Path) -> None:
    assert prepare_plan(tiny.config_in(tmp_path), measuring({})) == SamplePlan()


def test_the_digest_covers_prompts_and_settings_but_no_paths(tmp_path: Path) -> None:
    config = tiny.config_in(tmp_path, *ON, ("checkpoint.best_by", "sample/wer"))
    first = plan(config, asr="small")
    assert first.decides and first == plan(config, asr="small") and SamplePlan.parse(json.loads(json.dumps(first.as_json()))) == first
    others = [plan(config, asr="large"), plan(tiny.config_in(tmp_path, *ON[:1], ("sample.prompts", "[a]")), asr="small")]
    assert len({first.digest, *(one.digest for one in others)}) == 3 and not others[1].decides
    moved = replace(measuring({"asr": "small"}).inference.metrics.prepare(config), local={"asr": "/elsewhere"})  # type: ignore[union-attr,type-var]
    elsewhere = SampleMetrics(lambda _: moved, lambda *_: MeasuredAnswers({}, []))
    recipe = replace(tiny.RECIPE, inference=replace(tiny.RECIPE.inference, metrics=elsewhere))
    assert prepare_plan(config, recipe).digest == first.digest


def test_a_metric_that_is_not_measured_is_refused_before_training(tmp_path: Path) -> None:
    config = tiny.config_in(tmp_path, *ON, ("checkpoint.best_by", "sample/beauty max"))
    with pytest.raises(UserError, match="checkpoint.best_by: sample/beauty is not a metric of the samples; these are sample/wer"):
        plan(config)
