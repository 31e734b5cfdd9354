"""A collective that times out names the rank that did not arrive, and where it is."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from overtone.finetune.distributed.process_group import World
from overtone.finetune.monitoring import collective_progress, rank_status_records
from overtone.finetune.monitoring.rank_status_records import RankStatus
from tests.finetune import tiny

HANG = """
import os, sys, threading
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from overtone.finetune.distributed import process_group
from overtone.finetune.monitoring import rank_failure_detection as detection

detection.SIGNS_SECONDS, detection.NOTICE_SECONDS, detection.LOOK_SECONDS = 0.2, 1.0, 0.5
process_group.PATIENCE = timedelta(seconds=SECONDS)
world = process_group.join((), Path())

def read_slowly():
    threading.Event().wait()

with detection.Heartbeat(world) as beating:
    beating.leave_traces_in(Path(FOLDER), lambda loss: print(loss.rank, loss.reason, loss.message, sep="|", flush=True))
    beating.note_event("step", 7, {})
    process_group.gather_from_ranks(world, "both")
    if world.rank == LATE:
        read_slowly()
    process_group.sum_over_ranks(world, [1.0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_hangs_is_named_when_the_collective_times_out(tmp_path: Path, late: int, capfd: pytest.CaptureFixture[str]) -> None:
    script = HANG.replace("FOLDER", repr(str(tmp_path))).replace("LATE", str(late)).replace("SECONDS)", "8)")
    with tiny.started(script) as processes:
        said, _ = processes[1 - late].communicate(timeout=240)
        assert processes[1 - late].returncode == 1 and processes[late].wait(60) == 1, "the rank that hangs ends, too"
    rank, reason, message = said.strip().splitlines()[0].split("|")
    assert (rank, reason) == (str(late), "timed out")
    assert message.startswith(f"a collective timed out: rank {late} (process {processes[late].pid} on ")
    assert "did not arrive, after step 7: " in message and "(read_slowly))" in message
    assert f"note: the ranks have waited for 1 s: rank {late} (process {processes[late].pid} on " in capfd.readouterr().err


def status(rank: int, collectives: int, ranks: int = 3) -> RankStatus:
    own = {"rank": rank, "ranks": ranks, "host": f"node{rank}", "boot": "", "process": 10 + rank, "step": 4, "time": time.time()}
    memory = {"peak_gib": 1.0, "gpu_peak_gib": None, "out_of_memory_kills": None, "host_memory_gib": 4.0}
    return RankStatus.model_validate({**own, **memory, "collectives": collectives, "place": f"data/row{rank}.py:3 (read)"})


def test_the_rank_with_the_fewest_collectives_is_missing() -> None:
    """Rank 2 hangs; rank 1, which shares a group with it, waits there; rank 0, which does not, waits one collective later."""
    late = collective_progress.describe_missing([status(0, 9), status(1, 8), status(2, 7)])
    assert late == (
        "rank 2 (process 12 on node2, in data/row2.py:3 (read)) did not arrive, after step 4: "
        "7 collectives started there, 9 on the ranks that wait"
    )
    assert [each.rank for each in collective_progress.find_missing([status(0, 7), status(1, 8), status(2, 7)])] == [0, 2]


def test_nothing_is_claimed_of_ranks_that_are_level_or_without_a_record() -> None:
    assert collective_progress.describe_missing([status(0, 8, 2), status(1, 8, 2)]) is None
    assert collective_progress.describe_missing([status(0, 9), status(1, 8)]) is None, "that of rank 2 is missing"
    assert collective_progress.describe_missing([]) is None


def test_many_missing_ranks_are_counted() -> None:
    late = collective_progress.describe_missing([status(0, 9, 8), *(status(rank, 8, 8) for rank in range(1, 8))])
    assert late is not None and "rank 4 (process 14" in late and "and 3 more ranks did not arrive" in late and "rank 5" not in late


def test_collectives_of_all_groups_are_counted(world: World) -> None:
    before = collective_progress.count_collectives()
    dist.all_reduce(torch.ones(2))
    dist.all_reduce(torch.ones(2), group=world.votes)
    assert collective_progress.count_collectives() == before + 2


def test_the_place_is_the_innermost_line_of_this_program() -> None:
    places: list[str] = []
    seen = threading.Thread(target=lambda: places.append(collective_progress.locate_thread(threading.main_thread().ident or 0)))
    seen.start()
    seen.join()
    assert "tests/finetune/monitoring/test_collective_progress.py:" in places[0]
    assert places[0].endswith("(test_the_place_is_the_innermost_line_of_this_program)")


def test_the_packages_of_an_environment_beside_the_code_are_not_its_own() -> None:
    assert not collective_progress._is_own(Path(torch.__file__).resolve())
    assert not collective_progress._is_own(collective_progress.OWN / ".venv" / "lib" / "site-packages" / "torch" / "module.py")
    assert collective_progress._is_own(Path(__file__).resolve())


@pytest.mark.parametrize("written", ["[]", "{", '{"pg_status": {"0": {}}}', '{"pg_status": {"0": {"last_enqueued_collective": null}}}'])
def test_counters_of_another_form_name_no_rank(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    for name in collective_progress.COUNTERS:
        monkeypatch.setattr(torch._C._distributed_c10d, name, lambda **_: written, raising=False)
    assert collective_progress.count_collectives() == 0


def test_the_recorder_of_nccl_writes_to_the_folder_of_the_run_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    environ = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    expected = str(tmp_path / rank_status_records.FOLDER / "nccl-trace-rank-")
    names = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    with collective_progress.recording(tmp_path, environ):
        assert environ == {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", **dict.fromkeys(names, expected)}
    assert environ == {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, "the next run of this process has another folder"
