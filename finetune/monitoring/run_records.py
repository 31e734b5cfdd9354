"""The files in a run's folder that say what happened: their names, and readers of them. Imports no torch.

A log may be read while it is written, and a person or another program may have written into it.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from overtone.finetune.config import LAST_STEP
from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files, strict_json

LOG, EXIT_RECORD, CHECKPOINTS = "log.jsonl", "exit.json", "checkpoints"
ROLLOUTS = "rollouts.jsonl"
"""Prompts, answers and rewards of each step, of a recipe with `Rollouts`."""
MEASURED, SAMPLED = "measured", "sample/"
"""Event with the metrics of the samples of a step, which is logged later than the step; and the prefix of their names, in the log, in
`checkpoint.best_by`, and among the metrics of a checkpoint."""
FINISHED, FINISHED_EARLY = "finished", "finished early"
"""Reason in exit.json of a run that has taken all its steps, and beginning of that of a run that `train.patience` has ended."""
REFUSED = "refused"
"""Reason in exit.json of a launch with a config or data that it could not train with."""
LARGEST_JSON = 2**26
"""Bytes of the largest JSON document to read."""


def is_finished(reason: str) -> bool:
    """Return whether a run that ended for this reason has nothing left to do."""
    return reason == FINISHED or reason.startswith(FINISHED_EARLY)


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON document; empty if it cannot be read."""
    with contextlib.suppress(OSError, UserError):
        if path.stat().st_size <= LARGEST_JSON:
            return strict_json.read_object(path)
    return {}


def read_log(log: Path) -> list[dict[str, Any]]:
    """Events of a log. If a step was logged twice (repeated after a crash), the last entry is used. Raises `OSError`."""
    events: dict[tuple[str, int], dict[str, Any]] = {}
    for event in iterate_events(log):
        events[event["event"], event["step"]] = event
    return list(events.values())


def iterate_events(log: Path, longest_line: int = -1) -> Iterator[dict[str, Any]]:
    """Events in the order in which they were logged. A partial last line is dropped, and so are lines that are not events, and those of
    more than `longest_line` bytes. Raises `OSError`."""
    with input_files.open_file(log) as stream:
        while line := stream.readline(longest_line):
            event = _parse_event(line)
            if event is not None:
                yield event


class RunHistory(NamedTuple):
    """Losses and evaluations of a run, by optimizer step in ascending order."""

    losses: dict[int, float]
    """Training loss of each logged step."""
    evaluations: dict[int, dict[str, float]]
    """Metrics of each evaluation, without the prefix `val/`."""


def read_history(log: Path) -> RunHistory:
    """The history of the run in a folder, from its log. Steps from before a fresh start in the same folder, and those that a resumed launch
    repeats, do not count. Raises `OSError`."""
    losses, evaluations = dict[int, float](), dict[int, dict[str, float]]()
    for event in iterate_events(log):
        kind, step = event["event"], event["step"]
        if kind in ("started", "resumed"):
            losses = {known: loss for known, loss in losses.items() if kind == "resumed" and known <= step}
            evaluations = {known: metrics for known, metrics in evaluations.items() if kind == "resumed" and known <= step}
        elif kind == "step" and isinstance(event.get("loss"), float):
            losses[step] = event["loss"]
        elif kind == "evaluation":
            evaluations[step] = {
                key.removeprefix("val/"): value for key, value in event.items() if key.startswith("val/") and isinstance(value, float)
            }
    return RunHistory(dict(sorted(losses.items())), dict(sorted(evaluations.items())))


def _parse_event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    return event if is_step(event.get("step")) else None


def is_step(value: object) -> bool:
    """Return whether a value is a number of optimizer steps."""
    return type(value) is int and 0 <= value <= LAST_STEP


def find_best_evaluation(events: Iterable[dict[str, Any]], metric: str = "loss", highest: bool = False) -> tuple[float, int] | None:
    """(lowest or highest value of a metric, its step); None without an evaluation. Of a step that was evaluated twice, the last value
    counts; of equal values, the first step. Evaluations from before a resume on other validation rows do not count, nor do metrics of
    samples (`sample/NAME`) from before a resume with other prompts or another recognizer."""
    values: dict[int, Any] = {}
    kind, key, other = "evaluation", f"val/{metric}", "other_validation_data"
    if metric.startswith(SAMPLED):
        kind, key, other = MEASURED, metric, "other_samples"
    for event in events:
        if event["event"] == "resumed" and event.get(other) is True:
            values.clear()
        elif event["event"] == kind:
            values[event["step"]] = event.get(key)
    found = [(value, step) for step, value in values.items() if isinstance(value, float) and math.isfinite(value)]
    return min(found, key=lambda each: (-each[0] if highest else each[0], each[1]), default=None)
