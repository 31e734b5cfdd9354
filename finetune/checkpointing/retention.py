"""Chooses the checkpoints to keep: the best one by a metric of evaluations or samples, and some that are spread over the whole run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from overtone.finetune.monitoring.run_records import SAMPLED

SPREAD = 8
"""Largest number of checkpoints that `checkpoint.keep: spread` keeps besides the two newest and the best; at least half as many, if the run
saves often enough."""
NEWEST_OF_SPREAD = 2
"""Number of newest checkpoints that `spread` keeps, as with the smallest `checkpoint.keep`: if the newest is damaged, little is lost."""
Keep = int | Literal["spread"]


class BestBy(NamedTuple):
    """`checkpoint.best_by`."""

    metric: str = "loss"
    """A name that an evaluation logs, without `val/`; or a metric of samples, with `SAMPLED`."""
    highest: bool = False

    @classmethod
    def parse(cls, text: str | None) -> BestBy:
        """Parse the text in a config or a state.json; None means the lowest validation loss."""
        metric, _, direction = (text or "loss").partition(" ")
        return cls(metric, direction == "max")

    @property
    def is_sampled(self) -> bool:
        """True if it is a metric of the answers to `sample.prompts`, which are measured beside the run, after the step."""
        return self.metric.startswith(SAMPLED)

    def describe(self) -> str:
        name = "validation loss" if self.metric == "loss" else self.metric
        return f"{'highest' if self.highest else 'lowest'} {name}"

    def score(self, state: Mapping[str, Any]) -> float | None:
        """Larger is better. `state`: state.json of a checkpoint; None if it was not evaluated at its step, or without this metric."""
        value: float | None = state["evaluation"].get(self.metric)
        return None if value is None else self.rank(value)

    def rank(self, value: float) -> float:
        """Return a number that is the larger, the better the value."""
        return value if self.highest else -value


def describe_keep(keep: Keep) -> str:
    """Return what `checkpoint.keep` keeps besides the best."""
    if keep == "spread":
        return f"the newest {NEWEST_OF_SPREAD} and up to {SPREAD} over the whole run"
    return f"the newest {keep}"


def is_comparable(state: Mapping[str, Any], with_state: Mapping[str, Any], best_by: BestBy) -> bool:
    """Return whether the metric of two checkpoints is on the same validation rows, or of samples with the same settings: `add_measurements`
    has added no others. A checkpoint of a launch without validation rows is comparable with all: such a launch must not delete the best
    one."""
    digests = (state["validation"], with_state["validation"])
    return best_by.is_sampled or None in digests or digests[0] == digests[1]


def choose_best(states: Mapping[str, Mapping[str, Any]], best_by: BestBy) -> str | None:
    """Return the checkpoint with the best metric, the first one among equals. `states`: folder name → content of state.json."""
    scores = {name: score for name, state in states.items() if (score := best_by.score(state)) is not None}
    return min(scores, key=lambda name: (-scores[name], name), default=None)


def choose_best_step(values: Mapping[int, float], best_by: BestBy) -> int | None:
    """Return the step with the best value of the metric, the first one among equals; None without any. `values`: step → value."""
    return min(values, key=lambda step: (-best_by.rank(values[step]), step), default=None)


def choose_spread(steps: Iterable[int]) -> set[int]:
    """Return the steps to keep: the first of each interval of d steps, with d the smallest power of two of which `SPREAD` cover the run so
    far.

    It needs not know the last step. When d doubles, pairs of intervals become one, and the first step of the pair is one of those that were
    kept. So the result is the same whether earlier ones were pruned at each save, never, or by an interrupted run.
    """
    first: dict[int, int] = {}
    found = sorted(steps, reverse=True)
    interval = 1
    while found and found[0] >= SPREAD * interval:
        interval *= 2
    for step in found:
        first[step // interval] = step
    return {*first.values()}
