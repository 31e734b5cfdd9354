"""Progress of each rank through the run's collectives, from torch's flight recorder: which rank the others wait for, and where it is.

All ranks execute the same sequence of collectives, so the rank that has started the fewest is the one that the others wait for. Only the
recorder's counters are read, as JSON; its dumps are pickles, which nothing here opens.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import StackSummary, walk_stack

import torch

from overtone.finetune.monitoring.rank_status_records import FOLDER, RankStatus

STALLED_SECONDS = 30.0
"""A rank that has started no collective for this long is waiting, or is the one that the others wait for."""
COUNTERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Functions of torch's recorders, of gloo's groups and of NCCL's; a build without NCCL lacks the second."""
OWN = Path(__file__).resolve().parents[2]
"""The folder of this program's code."""


@contextmanager
def recording(run_dir: Path, environ: MutableMapping[str, str]) -> Iterator[None]:
    """Have NCCL write what its flight recorder has to the run's folder when a collective times out. Set what the user has not set, and only
    while open: the next run of this process has another folder. Open it before the process group is created."""
    prefix = str((run_dir / FOLDER / "nccl-trace-rank-").absolute())
    settings = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_DUMP_TEMP_FILE": prefix}
    settings["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] = prefix  # its name before torch 2.13
    added = {name: value for name, value in settings.items() if name not in environ}
    environ.update(added)
    try:
        yield
    finally:
        for name in added:
            environ.pop(name, None)


def count_collectives() -> int:
    """Number of collectives that this rank has started, in all groups; 0 if the recorder is off, or writes another form of JSON."""
    library, started = torch._C._distributed_c10d, 0
    for dump in (getattr(library, name) for name in COUNTERS if hasattr(library, name)):
        try:
            groups = json.loads(dump(includeCollectives=False, onlyActive=False)).get("pg_status", {})
            started += sum(max(0, int(group["last_enqueued_collective"])) for group in groups.values())
        except (AttributeError, KeyError, TypeError, ValueError):  # private to torch: without the counts, no rank is named
            return 0
    return started


def locate_thread(identifier: int) -> str:
    """File, line and function in which a thread of this process is: the innermost of this program's code; of others' if there is none."""
    frame = sys._current_frames().get(identifier)
    if frame is None:
        return ""
    calls = StackSummary.extract(walk_stack(frame), lookup_lines=False)  # the innermost first
    own = [call for call in calls if _is_own(Path(call.filename).resolve())]
    call = own[0] if own else calls[0]
    path = Path(call.filename).resolve()
    return f"{path.relative_to(OWN) if own else path}:{call.lineno} ({call.name})"


def _is_own(path: Path) -> bool:
    """True for this program's code, and false for the packages of an environment beside it."""
    return path.is_relative_to(OWN) and "site-packages" not in path.relative_to(OWN).parts


def find_missing(statuses: Sequence[RankStatus]) -> list[RankStatus]:
    """The ranks that the others wait for: those that have started the fewest collectives. None if all have started as many."""
    fewest = min((status.collectives for status in statuses), default=0)
    behind = [status for status in statuses if status.collectives == fewest]
    return behind if len(behind) < len(statuses) else []


def describe_missing(statuses: Sequence[RankStatus]) -> str | None:
    """A sentence that names the ranks that the others wait for, and where they are; None if there are none, or ranks without a record."""
    missing = find_missing(statuses)
    if not missing or len(statuses) < statuses[0].ranks:
        return None
    names = [f"rank {each.rank} (process {each.process} on {each.host}, in {each.place})" for each in missing]
    more = [f"{len(names) - 4} more ranks"] if len(names) > 4 else []
    most = max(status.collectives for status in statuses)
    return (
        f"{' and '.join([*names[:4], *more])} did not arrive, after step {missing[0].step}: "
        f"{missing[0].collectives} collectives started there, {most} on the ranks that wait"
    )
