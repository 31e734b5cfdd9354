"""The end of one rank is the end of all, and nothing short of that is; tests/reliability/test_stop.py kills real runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.errors import UserError
from finetune.heartbeat import BEAT_SECONDS, MISSING_SECONDS, PATIENCE_SECONDS, Heartbeat
from finetune.world import World
from tests.finetune import tiny

ALIVE = """
import threading, time
from pathlib import Path
from finetune import heartbeat
from finetune.errors import UserError
from finetune.guards import NotFiniteError
from finetune.world import join, leave

heartbeat.BEAT_SECONDS, heartbeat.MISSING_SECONDS = 0.1, 1.0
world = join((), Path())
with heartbeat.Heartbeat(world):
    time.sleep(3.0 * world.rank)  # longer than a dead rank is waited for
print("waited")
for error in (UserError("bad"), NotFiniteError("nan")):
    try:
        with heartbeat.Heartbeat(world):
            raise error
    except type(error):
        print(type(error).__name__)
time.sleep(heartbeat.PATIENCE_SECONDS + 1.0)
print([thread.name for thread in threading.enumerate() if thread.name == "heartbeat"])
leave()
"""


def test_all_are_gone_within_fifteen_seconds() -> None:
    """A beat may be almost due when its rank dies, its absence be seen a beat later, be read by others a beat after that."""
    assert MISSING_SECONDS + 3 * BEAT_SECONDS + PATIENCE_SECONDS <= 14


@pytest.mark.slow
def test_ranks_that_wait_or_fail_alike_end_by_themselves() -> None:
    for output in tiny.ranks(ALIVE):
        assert output.splitlines() == ["waited", "UserError", "NotFiniteError", "[]"]


STILL = """
import os, signal, sys, time
from pathlib import Path
from finetune import heartbeat
from finetune.world import join

heartbeat.BEAT_SECONDS, heartbeat.MISSING_SECONDS = 0.1, 2.0
world = join((), Path())
with heartbeat.Heartbeat(world) as beating:
    beating.leave_traces_in(Path(), lambda word: print(word, flush=True))
    time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGSTOP) if world.is_main else time.sleep(600.0)
"""


@pytest.mark.slow
def test_who_asks_a_store_that_stands_still_does_not_wait_for_ever() -> None:
    """As that of a machine that is cut off: its connections stay open, and nothing answers."""
    with tiny.started(STILL) as (first, second):
        said, _ = second.communicate(timeout=240)
        assert second.returncode == 1 and first.poll() is None
    assert said.startswith("the launcher's store does not answer: ")


def test_alone_it_only_keeps_the_traceback(world: World, tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(KeyError), Heartbeat(world) as heartbeat:
        heartbeat.leave_traces_in(tmp_path, told.append)
        try:
            raise KeyError("ours")
        except KeyError as error:
            assert heartbeat.fail(error) == heartbeat.fail(UserError("a later one")) == "rank 0 failed: KeyError: 'ours'"
            raise
    kept = (tmp_path / "failure-rank-0.txt").read_text()
    assert "Traceback (most recent call last)" in kept and 'raise KeyError("ours")' in kept
    assert told == [] and [path.name for path in tmp_path.iterdir()] == ["failure-rank-0.txt"]


def test_a_mistake_of_the_user_is_kept_without_a_traceback(world: World, tmp_path: Path) -> None:
    heartbeat = Heartbeat(world)
    heartbeat.leave_traces_in(tmp_path, print)
    assert heartbeat.fail(UserError("row 3 is empty")) == "rank 0 failed: UserError: row 3 is empty"
    assert (tmp_path / "failure-rank-0.txt").read_text().splitlines()[1:] == ["row 3 is empty"]
