"""A trial in its worker: the shared cache, the reported metric, how it ended. tests/launch/test_ray_tune.py runs trials on a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.finetune.ray_cluster.trial_worker import TrialReports, describe_outcome, link_prepared
from overtone.finetune.storage import files
from overtone.finetune.tuning.trial_metric import MetricReader, parse_metric


def test_a_trial_shares_the_prepared_cache_until_it_replaces_a_file(tmp_path: Path) -> None:
    prepared, run = tmp_path / "prepared", tmp_path / "run"
    for name in ("cache/train.index", "cache/elsewhere/a.jsonl", "cache/.index.lock"):
        files.write_text(files.make_folder((prepared / name).parent) / (prepared / name).name, name)
    files.write_text(files.make_folder(run / "cache") / "speakers.json", "own")
    files.write_text(prepared / "cache" / "speakers.json", "shared")
    link_prepared(prepared, run)
    assert (run / "cache/train.index").samefile(prepared / "cache/train.index") and (run / "cache/elsewhere/a.jsonl").is_file()
    assert not (run / "cache/.index.lock").exists(), "a lock of another run"
    assert (run / "cache/speakers.json").read_text() == "own", "of an earlier launch"
    files.write_text(run / "cache/train.index", "rebuilt")
    assert (prepared / "cache/train.index").read_text() == "cache/train.index"


def reports(run: Path, metric: str, answers: dict[int, str]) -> tuple[TrialReports, list[tuple[int, float, bool]]]:
    reported: list[tuple[int, float, bool]] = []

    def report(step: int, value: float, last: bool) -> str | None:
        reported.append((step, value, last))
        return answers.get(step)

    return TrialReports(run, MetricReader(parse_metric(metric), 2), report), reported


def test_evaluations_are_reported_and_a_stop_stays(tmp_path: Path) -> None:
    found, reported = reports(tmp_path, "val/loss", {10: "early stopping: x"})
    found.handle_event("started", 0, {"total": 20})
    for step in (5, 10, 20):
        found.handle_event("evaluation", step, {"val/loss": 30.0 - step})
        assert (found.get_stop() is None) == (step == 5)
    assert reported == [(5, 25.0, False), (10, 20.0, False)], "a trial that stops reports nothing more"


def test_the_last_step_is_reported_as_such(tmp_path: Path) -> None:
    found, reported = reports(tmp_path, "val/loss", {})
    found.handle_event("started", 0, {"total": 20})
    found.handle_event("evaluation", 20, {"val/loss": 1.0})
    assert reported == [(20, 1.0, True)]


def test_a_resumed_trial_averages_over_the_steps_of_the_log(tmp_path: Path) -> None:
    events = [{"event": "step", "step": step, "loss": float(step)} for step in range(1, 8)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    found, reported = reports(tmp_path, "loss", {})
    found.handle_event("resumed", 5, {"total": 20})
    found.handle_event("step", 6, {"loss": 6.0})
    assert reported == [(6, 3.5, False)]


@pytest.mark.parametrize(
    ("reason", "stop", "status"),
    [
        ("finished", None, "finished"),
        ("finished early: 3 evaluations without a better loss", "early stopping: x", "finished"),
        ("stopped by early stopping: x on rank 0", "early stopping: x", "stopped early"),
        ("stopped by SIGTERM on rank 0", None, "stopped"),
        ("stopped by the file STOP on rank 0", "early stopping: x", "stopped"),
    ],
)
def test_the_status_follows_from_the_reason(reason: str, stop: str | None, status: str) -> None:
    assert describe_outcome(reason, stop)["status"] == status
