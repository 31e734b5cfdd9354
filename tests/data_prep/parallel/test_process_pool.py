"""Workers that do, fail, die and are interrupted; real processes throughout."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from data_prep.parallel import process_pool
from data_prep.parallel.process_pool import Failure, StopSignal
from finetune.errors import UserError

ROOT = Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def make(number: int) -> Iterator[Callable[[str], tuple[str, int]]]:
    made: list[int] = []
    yield lambda order: do(order, made)


def do(order: str, made: list[int]) -> tuple[str, int]:
    """Does what its item says; gives the item back with the number of items that this worker did before."""
    what, _, value = order.partition(" ")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "leave":
        os._exit(3)
    if what == "raise":
        raise ValueError(value)
    if what == "refuse":
        raise UserError(value)
    if what == "once" and not Path(value).exists():  # dies the first time only
        Path(value).touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "sleep":
        time.sleep(float(value))
    if what == "block":
        Path(value).write_text(str(os.getpid()))
        time.sleep(600)
    made.append(1)
    return order, len(made) - 1


def results(items: list[str], workers: int) -> dict[int, object]:
    with StopSignal() as stop:
        return dict(process_pool.run_items(items, make, workers, stop))


def test_every_item_is_done_once_and_workers_are_kept() -> None:
    found = results([f"item {number}" for number in range(7)], 2)
    assert {index: result[0] for index, result in found.items()} == {number: f"item {number}" for number in range(7)}
    assert sorted(result[1] for result in found.values())[-1] >= 3  # of two workers one did at least four
    assert results([], 3) == {}


def test_an_item_that_kills_its_worker_is_given_up_and_the_others_go_on(tmp_path, capfd) -> None:
    found = results(["a", "die", "b", f"once {tmp_path / 'mark'}", "leave", "raise a word", "c"], 2)
    assert {index for index, result in found.items() if not isinstance(result, Failure)} == {0, 2, 3, 6}
    assert found[1] == Failure("its process was killed by SIGKILL")
    assert found[4] == Failure("its process exited with code 3")
    assert found[5] == Failure("ValueError: a word")
    assert "in do\n" in capfd.readouterr().err  # a fault of ours keeps its traceback


def test_without_workers_a_failing_item_is_tried_twice_in_this_process(capfd) -> None:
    assert results(["a", "raise x", "b"], 0) == {0: ("a", 0), 1: Failure("ValueError: x"), 2: ("b", 1)}
    assert capfd.readouterr().err.count("in do\n") == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_wrong_request_ends_the_run(workers) -> None:
    with pytest.raises(UserError, match="no such weights"):
        results(["refuse no such weights", "sleep 0.1"], workers)


def test_the_first_signal_finishes_what_is_in_hand() -> None:
    for workers in (0, 2):
        with StopSignal() as stop:
            found = {}
            for index, result in process_pool.run_items([f"item {number}" for number in range(9)], make, workers, stop):
                found[index] = result
                if not stop.requested:
                    os.kill(os.getpid(), signal.SIGTERM if workers else signal.SIGINT)
        assert 1 <= len(found) <= 2
        assert not any(isinstance(result, Failure) for result in found.values())


def test_the_second_signal_interrupts_and_leaves_no_process(tmp_path) -> None:
    with pytest.raises(KeyboardInterrupt), StopSignal() as stop:
        for _ in process_pool.run_items(["now", f"block {tmp_path / 'pid'}"], make, 2, stop):
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_workers_leave_when_their_parent_is_killed(tmp_path) -> None:
    marks = [tmp_path / "one", tmp_path / "two"]
    code = (
        "from data_prep.parallel import process_pool as pool\n"
        "from tests.data_prep.parallel.test_process_pool import make\n"
        f"with pool.StopSignal() as stop: list(pool.run_items({[f'block {mark}' for mark in marks]!r}, make, 2, stop))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    while not all(mark.exists() and mark.read_text() for mark in marks):
        assert parent.poll() is None
        time.sleep(0.01)
    workers = [psutil.Process(int(mark.read_text())) for mark in marks]
    parent.kill()
    parent.wait()
    _, left = psutil.wait_procs(workers, timeout=60)
    assert left == []
