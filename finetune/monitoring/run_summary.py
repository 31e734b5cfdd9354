"""Summary of a run from the files in its folder: recipe, state, step, best evaluation, and size. Needs no torch, and only reads.

The folder may come from anywhere: a file that cannot be read, or that holds something else, counts as missing.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overtone.finetune.monitoring import rank_status_records
from overtone.finetune.monitoring.rank_status_records import RankStatus
from overtone.finetune.monitoring.run_records import (
    CHECKPOINTS,
    EXIT_RECORD,
    LOG,
    MEASURED,
    REFUSED,
    find_best_evaluation,
    is_finished,
    is_step,
    iterate_events,
    read_json,
)

LONGEST_LINE = 2**20
"""Bytes of a line of the log that are read; longer names are not metrics."""
SILENT_SECONDS = 60.0
"""A process on another machine is considered dead if it has not written its status for this long."""


@dataclass(frozen=True)
class RunSummary:
    """One line of `overtone ls`."""

    folder: Path
    recipe: str
    """Empty if no checkpoint says it."""
    state: str
    """`running`, `finished`, `stopped`, `refused`, `failed`, or `no record`."""
    reason: str
    """Reason in `exit.json` for a run that stopped or failed; or a note that a process was killed."""
    step: int
    """The last optimizer step that was logged."""
    total: int | None
    """Optimizer steps of the whole run."""
    best_metric: str
    """Metric of `checkpoint.best_by` in the newest checkpoint: the name of a metric of the evaluations, or of samples."""
    best_highest: bool
    """True if the highest value of the metric is the best."""
    best_value: float | None
    """Its best value in the log."""
    best_step: int | None
    bytes: int
    """Size of the folder."""


@dataclass(frozen=True)
class LoggedProgress:
    """The progress of a run as its log has it."""

    step: int = 0
    total: int | None = None
    evaluations: tuple[dict[str, Any], ...] = ()
    """Events of evaluations, of measured samples, and of resumed launches."""


MOST_LOGS = 1000
PROGRESS: dict[Path, tuple[tuple[int, ...], LoggedProgress]] = {}
"""Log → its version and what it says, of the `MOST_LOGS` that were read last. A log that grows replaces its own entry."""
PROGRESS_LOCK = threading.Lock()


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run: it has a log or checkpoints."""
    return (folder / LOG).is_file() or (folder / CHECKPOINTS).is_dir()


def summarize_run(folder: Path) -> RunSummary:
    """The summary of a run's folder."""
    logged = LoggedProgress()
    with contextlib.suppress(OSError):  # no log
        found = (folder / LOG).stat()
        logged = read_progress(folder / LOG, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))
    state, reason = find_state(folder)
    newest = max((path.name for path in (folder / CHECKPOINTS).glob("step-*")), default="")
    saved = read_json(folder / CHECKPOINTS / newest / "state.json") if newest else {}
    recipe, best_by = (value if isinstance(value := saved.get(key), str) else "" for key in ("recipe", "best_by"))
    metric, _, direction = (best_by or "loss").partition(" ")
    best, at = find_best_evaluation(logged.evaluations, metric, direction == "max") or (None, None)
    return RunSummary(
        folder=folder,
        recipe=recipe,
        state=state,
        reason=reason,
        step=logged.step,
        total=logged.total,
        best_metric=metric,
        best_highest=direction == "max",
        best_value=best,
        best_step=at,
        bytes=count_bytes(folder),
    )


def read_progress(log: Path, version: tuple[int, ...]) -> LoggedProgress:
    """Return what the log of a run says. `version`: device, inode, size and time of the file, so that a log that did not change is read
    once: the page of a studio shows all runs of a folder. Raises `OSError`."""
    known = PROGRESS.get(log)
    if known is not None and known[0] == version:
        return known[1]
    step, total, evaluations = 0, None, list[dict[str, Any]]()
    for event in iterate_events(log, LONGEST_LINE):
        if event["event"] in ("started", "resumed"):  # a run that starts again in its folder logs from step 0
            step, total = event["step"], event["total"] if is_step(event.get("total")) else None
        if event["event"] in ("resumed", "evaluation", MEASURED):
            evaluations.append(event)
        step = max(step, event["step"])
    progress = LoggedProgress(step, total, tuple(evaluations))
    with PROGRESS_LOCK:
        PROGRESS.pop(log, None)
        if len(PROGRESS) >= MOST_LOGS:
            del PROGRESS[next(iter(PROGRESS))]
        PROGRESS[log] = version, progress
    return progress


def find_state(folder: Path) -> tuple[str, str]:
    """(state, reason) of a run; see `RunSummary`."""
    if (folder / EXIT_RECORD).is_file():
        reason = read_json(folder / EXIT_RECORD).get("reason")
        reason = reason if isinstance(reason, str) else "its exit.json cannot be read"
        if is_finished(reason):
            return "finished", reason.removeprefix("finished").strip()
        if reason == REFUSED:
            return reason, ""
        return ("stopped" if reason.startswith("stopped by ") else "failed"), reason.removeprefix("stopped ")
    statuses = rank_status_records.read_all_statuses(folder)
    if any(map(is_alive, statuses)):
        return "running", ""
    return ("failed", "killed without a record") if statuses else ("no record", "")


def is_alive(status: RankStatus) -> bool:
    """Return whether the process of a status record probably still runs."""
    if status.host != platform.node() or status.boot != rank_status_records.boot_id():
        return abs(time.time() - status.time) < SILENT_SECONDS
    try:
        os.kill(max(0, status.process), 0)  # 0, like a negative number, would be a group of processes
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return status.process > 0


def count_bytes(folder: Path) -> int:
    """Size of all files in a folder. A file with several names (hard links) counts once; symbolic links are not followed."""
    seen, total = set[tuple[int, int]](), 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # removed meanwhile, as an old checkpoint
                found = os.lstat(Path(place) / name)
                if (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    total += found.st_size
    return total
