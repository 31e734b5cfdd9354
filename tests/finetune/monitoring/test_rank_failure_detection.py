"""The end of one rank ends all ranks, and nothing else does; tests/reliability/test_stop.py kills real runs."""

from __future__ import annotations

import os
import platform
import signal
from pathlib import Path

import pytest

from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring import rank_status_records
from overtone.finetune.monitoring.peer_processes import ProcessExit
from overtone.finetune.monitoring.rank_failure_detection import BEAT_SECONDS, MISSING_SECONDS, PATIENCE_SECONDS, Heartbeat, RunFailure
from tests.finetune import fork_server, tiny

ALIVE = """
import threading, time
from pathlib import Path
from overtone.finetune.monitoring import rank_failure_detection as detection
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.loss_spikes import NotFiniteError
from overtone.finetune.distributed.process_group import join, leave

detection.BEAT_SECONDS, detection.MISSING_SECONDS = 0.1, 1.0
world = join((), Path())
with detection.Heartbeat(world):
    time.sleep(3.0 * world.rank)  # longer than a dead rank is waited for
print("waited")
for error in (UserError("bad"), NotFiniteError("nan")):
    try:
        with detection.Heartbeat(world):
            raise error
    except type(error):
        print(type(error).__name__)
time.sleep(detection.PATIENCE_SECONDS + 1.0)
print([thread.name for thread in threading.enumerate() if thread.name == "heartbeat"])
leave()
"""


DEAD = """
import os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from overtone.finetune.monitoring import rank_failure_detection as detection
from overtone.finetune.distributed.process_group import join

world, me = join((), Path()), int(os.environ["RANK"])
with detection.Heartbeat(world) as beating:
    beating.leave_traces_in(Path(FOLDER), lambda loss: print(loss.rank, loss.signal, loss.message, sep="|", flush=True))
    beating.note_event("step", 7, {})
    beating._record_signs(Path(FOLDER))
    dist.barrier(group=world.votes)
    if me == WHO:
        os.kill(os.getpid(), signal.NAME)
    dist.barrier(group=world.votes)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("who", "name"), [(1, "SIGKILL"), (0, "SIGKILL"), (1, "SIGSEGV")])
def test_the_remaining_rank_names_the_dead_one_and_its_signal(tmp_path: Path, who: int, name: str) -> None:
    """Rank 0 holds the store of these ranks, so its death leaves nothing to ask. No parent collects their exit codes before the end."""
    with tiny.started(DEAD.replace("FOLDER", repr(str(tmp_path))).replace("WHO", str(who)).replace("NAME", name)) as processes:
        said, _ = processes[1 - who].communicate(timeout=90)
        assert processes[1 - who].returncode == 1
    rank, ended_by, message = said.strip().split("|")
    assert (rank, ended_by) == (str(who), name)
    words = "was killed (SIGKILL) after step 7: " if name == "SIGKILL" else f"was ended by {name}: a crash inside a library"
    assert message.startswith(f"rank {who} (process {processes[who].pid} on {platform.node()}) {words}")
    assert ("its peak of host memory was 0." in message) == (name == "SIGKILL")


@pytest.mark.slow
def test_a_silent_rank_of_another_machine_is_reported_as_missing(tmp_path: Path) -> None:
    far = "detection.MISSING_SECONDS = 2.0\ndetection.identify_process = lambda: (f'machine {me}', '', '', os.getpid())\nwith detection"
    script = DEAD.replace("with detection", far, 1).replace("FOLDER", repr(str(tmp_path))).replace("WHO", "1").replace("NAME", "SIGKILL")
    with tiny.started(script) as (first, _):
        said, _ = first.communicate(timeout=90)
    rank, ended_by, message = said.strip().split("|")
    assert (rank, ended_by) == ("1", "None") and "after step 7; if it was killed: likely out of memory" in message
    assert message.startswith("rank 1 is missing: no heartbeat for 2 s on ")


def test_all_ranks_end_within_fifteen_seconds() -> None:
    """A beat may be almost due when its rank dies, its absence be seen a beat later, be read by others a beat after that."""
    assert MISSING_SECONDS + 3 * BEAT_SECONDS + PATIENCE_SECONDS <= 14


@pytest.mark.slow
def test_ranks_that_wait_or_fail_together_are_not_ended_by_the_heartbeat() -> None:
    for output in tiny.ranks(ALIVE):
        assert output.splitlines() == ["waited", "UserError", "NotFiniteError", "[]"]


STILL = """
import os, signal, sys, time
from pathlib import Path
import torch.distributed as dist
from overtone.finetune.monitoring import rank_failure_detection as detection
from overtone.finetune.distributed.process_group import join

detection.BEAT_SECONDS, detection.MISSING_SECONDS = 0.1, 2.0
world = join((), Path())
with detection.Heartbeat(world) as beating:
    beating.leave_traces_in(Path(FOLDER), lambda loss: print(loss.message, flush=True))
    dist.barrier(group=world.votes)
    os.kill(os.getpid(), signal.SIGSTOP) if world.is_main else time.sleep(600.0)
"""


@pytest.mark.slow
def test_a_rank_does_not_wait_forever_for_a_stopped_store(tmp_path: Path) -> None:
    """As that of a machine that is cut off: its connections stay open, and nothing answers."""
    with tiny.started(STILL.replace("FOLDER", repr(str(tmp_path)))) as (first, second):
        said, _ = second.communicate(timeout=240)
        assert second.returncode == 1 and first.poll() is None
    assert said.startswith("the launcher's store does not respond: ")


def test_a_single_rank_only_writes_its_traceback(world: World, tmp_path: Path) -> None:
    losses: list[RunFailure] = []
    with pytest.raises(KeyError), Heartbeat(world) as heartbeat:
        heartbeat.leave_traces_in(tmp_path, losses.append)
        try:
            raise KeyError("ours")
        except KeyError as error:
            first = RunFailure("KeyError: 'ours'", 0, reported=True)
            assert heartbeat.fail(error) == heartbeat.fail(UserError("a later one")) == first
            raise
    kept = (tmp_path / "failure-rank-0.txt").read_text()
    assert "Traceback (most recent call last)" in kept and 'raise KeyError("ours")' in kept
    assert losses == [first] and sorted(path.name for path in tmp_path.iterdir()) == ["cache", "failure-rank-0.txt"]
    signs = rank_status_records.read_status(tmp_path, 0)
    assert signs is not None and (signs.rank, signs.ranks, signs.process) == (0, 1, os.getpid()) and signs.peak_gib > 0.1


def test_a_disk_that_fails_hides_no_failure(world: World, tmp_path: Path) -> None:
    heartbeat = Heartbeat(world)
    (tmp_path / "failure-rank-0.txt").mkdir()
    heartbeat.leave_traces_in(tmp_path, print)
    assert heartbeat.fail(KeyError("ours")).message == "KeyError: 'ours'"


def test_a_mistake_of_the_user_is_kept_without_a_traceback(world: World, tmp_path: Path) -> None:
    heartbeat = Heartbeat(world)
    heartbeat.leave_traces_in(tmp_path, print)
    assert heartbeat.fail(UserError("row 3 is empty")) == RunFailure("row 3 is empty", 0, reported=True, refused=True)
    assert (tmp_path / "failure-rank-0.txt").read_text().splitlines()[1:] == ["row 3 is empty"]


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        (None, None, "ended after step 7 for an unknown reason (see the launcher's output); if it was killed: likely out of memory"),
        ("SIGKILL", None, "was killed (SIGKILL) after step 7: likely out of memory"),
        ("SIGHUP", None, "was ended by SIGHUP"),
        (None, 3, "exited with code 3 and without a message"),
    ],
)
def test_the_end_of_a_rank_is_described_as_far_as_it_is_known(world: World, how: str | None, code: int | None, words: str) -> None:
    heartbeat = Heartbeat(world)
    heartbeat.note_event("step", 7, {})
    loss = heartbeat._describe_deaths([ProcessExit(1, 4711, how, code)])
    assert loss.message.startswith(f"rank 1 (process 4711 on {platform.node()}) {words}") and (loss.rank, loss.signal) == (1, how)


@pytest.mark.parametrize("is_open", [True, False])
def test_an_end_by_signal_is_reported_once_even_without_a_terminal(is_open: bool) -> None:
    """A closed terminal takes stderr away."""
    script = """
import os, signal, sys
from pathlib import Path
from overtone.finetune.monitoring.rank_failure_detection import Heartbeat
from overtone.finetune.distributed.process_group import join

heartbeat = Heartbeat(join((), Path()))
heartbeat.on_failure = lambda loss: print(loss.signal, loss.message, flush=True)
if sys.argv[1] == "False":
    nobody, pipe = os.pipe()
    os.close(nobody)
    os.dup2(pipe, 2)
heartbeat.end_by_signal(signal.SIGHUP)
"""
    ended = fork_server.run_command("-c", script, is_open)
    assert ended.returncode == 128 + signal.SIGHUP and ended.stdout == "SIGHUP rank 0 was ended by SIGHUP\n"
    assert ended.stderr == ("error: rank 0 was ended by SIGHUP\n" if is_open else "")
