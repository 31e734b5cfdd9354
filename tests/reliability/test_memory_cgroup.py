"""A rank whose control group runs out of memory is killed by the kernel: the other rank says so, and the run resumes bit by bit."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from overtone.finetune.hardware.host_memory import CONTROL_GROUPS, V1, V2, Version
from overtone.finetune.training import loop
from overtone.finetune.training.step import Training
from tests import loopback
from tests.ledger import record
from tests.reliability import victims
from tests.reliability.test_kill import RANKS, STEPS, arguments, check_equal

KILLED, GREEDY_STEP, ROOM = 1, 5, 32 << 20
"""The rank, the step at which it takes too much, and the bytes that its group has left then."""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of its own for memory, which this user's processes may enter."""
    folder = next(filter(None, map(create_group, (V1, V2))), None)
    if folder is None:
        pytest.skip("needs the right to create and to enter a control group for memory")
    yield folder
    remove_group(folder)


def create_group(version: Version) -> Path | None:
    folder = CONTROL_GROUPS / version.mount / f"overtone-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
        (folder / version.limit).read_text()
        entering = [sys.executable, "-c", "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()))", str(folder / "cgroup.procs")]
        subprocess.run(entering, check=True, capture_output=True)
        for swap in ("memory.swap.max", "memory.swappiness"):  # the kernel must kill, not swap
            if (folder / swap).is_file():
                (folder / swap).write_text("0")
    except (OSError, subprocess.CalledProcessError):
        remove_group(folder)
        return None
    return folder


def remove_group(folder: Path) -> None:
    """End the processes of a group, if a test that failed has left any, and remove it."""
    with contextlib.suppress(FileNotFoundError):
        left = [psutil.Process(int(process)) for process in (folder / "cgroup.procs").read_text().split()]
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=60)
        folder.rmdir()


def train_in_group(group: Path, rank: int, *rest: Any) -> None:
    """A rank; one of them enters the group, and takes more memory than the group has left."""
    if rank == KILLED:
        version = V1 if (group / V1.limit).is_file() else V2
        (group / "cgroup.procs").write_text(str(os.getpid()))
        step = loop.train_step

        def take_memory(training: Training, turns: list[Any], number: int, *others: Any) -> dict[str, float]:
            if number == GREEDY_STEP:
                used = int((group / version.used).read_text())
                (group / version.limit).write_text(str((used + ROOM) // 4096 * 4096))
                bytearray(b"x") * (8 * ROOM)
            return step(training, turns, number, *others)

        loop.train_step = take_memory
    victims.train_rank(rank, *rest)


@pytest.mark.slow
@pytest.mark.ci
def test_a_rank_that_the_kernel_kills_is_named_and_the_run_resumes(group: Path, tmp_path: Path) -> None:
    run, witness, whole = tmp_path / "run", tmp_path / "witness", tmp_path / "whole"
    victims.finish(whole / "witness", RANKS, arguments(whole, whole / "run"))
    witness.mkdir()
    port = loopback.free_port()
    ranks = [victims.begin(train_in_group, group, rank, RANKS, port, witness, arguments(tmp_path, run), None) for rank in range(RANKS)]
    codes, said = victims.wait(ranks), victims.said(witness)
    # 2 if the loop meets the report of the failure first, 1 if a collective breaks first.
    assert codes[0] in (1, 2) and codes[1] == -9 and "Traceback" not in said, (codes, said)
    assert f"rank {KILLED} (process {ranks[KILLED].pid} on " in said, said
    # It says SIGKILL only if the parent has not collected the status before the other rank reads it.
    assert re.search(rf" after step ({GREEDY_STEP - 1}|{GREEDY_STEP})\b", said), said
    assert "out of memory: the kernel's out-of-memory killer has ended a process on" in said, said
    victims.finish(witness, RANKS, arguments(tmp_path, run))
    check_equal(tmp_path, whole, STEPS)
    record("one of 2 ranks killed by the kernel, since its memory control group is full: named, and the run resumes bit by bit", 1)
