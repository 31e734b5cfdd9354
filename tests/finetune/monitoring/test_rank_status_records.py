"""Status records of ranks: what is written is read, and a torn file counts as missing."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from overtone.finetune.hardware import host_memory
from overtone.finetune.monitoring import rank_status_records
from overtone.finetune.monitoring.rank_status_records import RankStatus


def signs(**changes: object) -> RankStatus:
    own = {"rank": 0, "ranks": 1, "host": platform.node(), "boot": rank_status_records.boot_id(), "process": os.getpid(), "step": 12}
    memory = {"peak_gib": 3.25, "gpu_peak_gib": None, "out_of_memory_kills": 4, "host_memory_gib": 4.0}
    return RankStatus.model_validate({**own, **memory, "time": time.time(), **changes})


def test_recorded_signs_are_read_and_torn_files_are_ignored(tmp_path: Path) -> None:
    for one in (signs(rank=1, ranks=2), signs(ranks=2)):
        rank_status_records.write_status(tmp_path, one)
        assert rank_status_records.read_status(tmp_path, one.rank) == one
    assert [one.rank for one in rank_status_records.read_all_statuses(tmp_path)] == [0, 1]
    path = rank_status_records.status_path(tmp_path, 1)
    for content in (
        signs(rank=1).model_dump_json().replace('"time":', '"time":1e300,"was":').encode(),
        b"",
        b"[",
        b"{}",
        path.read_bytes()[:40],
        b"\xff",
        b"[" * 10**5,
    ):
        path.write_bytes(content)
        assert rank_status_records.read_status(tmp_path, 1) is None and len(rank_status_records.read_all_statuses(tmp_path)) == 1


def test_signs_of_this_machine_are_plausible() -> None:
    assert rank_status_records.boot_id() == rank_status_records.boot_id()
    assert 0 < rank_status_records.peak_gib() < host_memory.host_memory() / host_memory.GIB
