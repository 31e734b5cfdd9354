"""Tests of `overtone.finetune.monitoring.run_summary`: the state of a run in each of its ends, and folders that hold something else."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.monitoring import rank_status_records, run_summary
from overtone.finetune.monitoring.rank_status_records import RankStatus
from overtone.finetune.monitoring.run_summary import SILENT_SECONDS, count_bytes, find_state, is_run, summarize_run


def write_log(run: Path, *events: dict[str, Any]) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    (run / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return run


def write_status(run: Path, **changed: Any) -> None:
    known = {"host": platform.node(), "boot": rank_status_records.boot_id(), "process": os.getpid(), "time": time.time()} | changed
    rank_status_records.write_status(
        run,
        RankStatus(rank=0, ranks=1, step=3, peak_gib=1.0, gpu_peak_gib=None, out_of_memory_kills=None, host_memory_gib=4.0, **known),
    )


def step(number: int, kind: str = "step", **facts: Any) -> dict[str, Any]:
    return {"event": kind, "step": number, "time": 1.0, **facts}


def test_a_log_gives_step_total_and_best_loss(tmp_path: Path) -> None:
    run = write_log(
        tmp_path / "run",
        step(0, "started", total=9),
        step(1, loss=5.0),
        step(1, "evaluation", **{"val/loss": 4.0}),
        step(2, "evaluation", **{"val/loss": 3.0}),
        step(3, "evaluation", **{"val/loss": float("nan")}),
        step(3, "evaluation", **{"val/loss": 3.5}),
        step(3, loss=1.0),
    )
    newest = run / "checkpoints" / "step-00000003"
    newest.mkdir(parents=True)
    (newest / "state.json").write_text(json.dumps({"recipe": "voice_clone"}))
    found = summarize_run(run)
    assert (found.recipe, found.step, found.total, found.best_value, found.best_step) == ("voice_clone", 3, 9, 3.0, 2)
    assert is_run(run) and not is_run(tmp_path)


def test_a_log_is_read_again_only_if_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    was_read, iterate_events = list[Path](), run_summary.iterate_events
    monkeypatch.setattr(run_summary, "iterate_events", lambda log, longest: was_read.append(log) or iterate_events(log, longest))
    run, other = (write_log(tmp_path / name, step(1, loss=5.0)) for name in ("run", "other"))
    log = run / "log.jsonl"
    assert [summarize_run(one).step for one in (run, run, other, other)] == [1, 1, 1, 1] and was_read == [log, other / "log.jsonl"]
    with log.open("a") as file:
        file.write(json.dumps(step(2, loss=4.0)) + "\n")
    assert summarize_run(run).step == 2
    written = log.stat()
    log.write_text(log.read_text().replace('"step": 2', '"step": 3'))
    os.utime(log, ns=(written.st_atime_ns, written.st_mtime_ns + 1))
    assert log.stat().st_size == written.st_size and summarize_run(run).step == 3
    (tmp_path / "new").write_text(log.read_text().replace('"step": 3', '"step": 4'))
    os.utime(tmp_path / "new", ns=(written.st_atime_ns, written.st_mtime_ns + 1))
    (tmp_path / "new").replace(log)
    assert summarize_run(run).step == 4, "another file of the same size and time"
    log.unlink()
    assert summarize_run(run).step == 0 and len(was_read) == 5


def test_a_log_that_grows_takes_the_place_of_its_own_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_summary, "PROGRESS", {})
    monkeypatch.setattr(run_summary, "MOST_LOGS", 2)
    first, second, third = (write_log(tmp_path / name, step(1, loss=5.0)) for name in ("first", "second", "third"))
    summarize_run(second)
    for number in (2, 3, 4):
        write_log(first, *(step(one, loss=1.0) for one in range(number)))
        summarize_run(first)
    assert [*run_summary.PROGRESS] == [second / "log.jsonl", first / "log.jsonl"]
    summarize_run(third)
    assert [*run_summary.PROGRESS] == [first / "log.jsonl", third / "log.jsonl"]


@pytest.mark.parametrize(
    ("best_by", "best"), [(None, ("loss", 1.0, 3)), ("words max", ("words", 0.9, 2)), ("pace min", ("pace", None, None))]
)
def test_the_best_is_that_of_the_checkpoints_metric(
    tmp_path: Path, best_by: str | None, best: tuple[str, float | None, int | None]
) -> None:
    measured = [{"val/loss": 2.0, "val/words": 0.1}, {"val/loss": 1.5, "val/words": 0.9}, {"val/loss": 1.0, "val/words": 0.5}]
    run = write_log(tmp_path / "run", *(step(number, "evaluation", **values) for number, values in enumerate(measured, start=1)))
    newest = run / "checkpoints" / "step-00000003"
    newest.mkdir(parents=True)
    (newest / "state.json").write_text(json.dumps({"recipe": "voice_clone", "best_by": best_by}))
    found = summarize_run(run)
    assert (found.best_metric, found.best_value, found.best_step) == best


def test_evaluations_on_other_rows_are_forgotten(tmp_path: Path) -> None:
    run = write_log(
        tmp_path,
        step(1, "evaluation", **{"val/loss": 1.0}),
        step(1, "resumed", total=4, other_validation_data=True),
        step(2, "evaluation", **{"val/loss": 3.0}),
        step(2, "resumed", total=4, other_validation_data=False),
    )
    assert (summarize_run(run).best_value, summarize_run(run).best_step) == (3.0, 2)


def test_a_new_start_in_the_folder_counts_from_its_own_step(tmp_path: Path) -> None:
    run = write_log(tmp_path, step(0, "started", total=9), step(5, loss=1.0), step(2, "resumed", total=4), step(3, loss=1.0))
    assert (summarize_run(run).step, summarize_run(run).total) == (3, 4)


@pytest.mark.parametrize(
    ("record", "state"),
    [
        ({"reason": "finished"}, ("finished", "")),
        ({"reason": "stopped by SIGTERM"}, ("stopped", "by SIGTERM")),
        ({"reason": "out of memory"}, ("failed", "out of memory")),
        ({"reason": 3}, ("failed", "its exit.json cannot be read")),
        ([], ("failed", "its exit.json cannot be read")),
    ],
)
def test_the_exit_record_names_the_state(record: object, state: tuple[str, str], tmp_path: Path) -> None:
    write_status(tmp_path)
    (tmp_path / "exit.json").write_text(json.dumps(record))
    assert find_state(tmp_path) == state


def test_a_live_process_is_a_running_run(tmp_path: Path) -> None:
    assert find_state(tmp_path) == ("no record", "")
    write_status(tmp_path)
    assert find_state(tmp_path) == ("running", "")
    write_status(tmp_path, host="another", time=time.time() - SILENT_SECONDS / 2)
    assert find_state(tmp_path) == ("running", "")


def test_a_killed_process_is_a_failed_run(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    silent = {"host": "another", "time": time.time() - 2 * SILENT_SECONDS}
    for changed in ({"process": gone.pid}, {"process": 0}, {"process": 2**70}, silent):
        write_status(tmp_path, **changed)
        assert find_state(tmp_path) == ("failed", "killed without a record"), changed


@pytest.mark.parametrize(
    "line",
    [b"\xff\n", b"[1]\n", b'{"event": "step"}\n', b'{"event": "step", "step": -1}\n', b'{"event": "step", "step": 1e9}\n', b"[" * 10**6],
)
def test_a_log_that_holds_something_else_is_passed_over(line: bytes, tmp_path: Path) -> None:
    write_log(tmp_path, step(2, loss=1.0))
    with (tmp_path / "log.jsonl").open("ab") as log:
        log.write(line)
    assert summarize_run(tmp_path).step == 2


def test_links_are_counted_once_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "large").write_bytes(bytes(10**6))
    (tmp_path / "run" / "a").write_bytes(bytes(1000))
    (tmp_path / "run" / "b").hardlink_to(tmp_path / "run" / "a")
    (tmp_path / "run" / "c").symlink_to(tmp_path / "large")
    assert 1000 <= count_bytes(tmp_path / "run") < 2000
