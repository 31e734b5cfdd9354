"""A pool of worker processes: workers that crash, fail and are interrupted, and a parent that is killed. The processes are real."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from overtone.data_prep.parallel import process_pool
from overtone.data_prep.parallel.process_pool import Failure, StopSignal
from overtone.finetune.errors import UserError
from tests.data_prep.parallel.scripted_worker import make, make_refusing

ROOT = Path(__file__).resolve().parents[3]


def results(items: list[str], workers: int) -> dict[int, object]:
    with StopSignal() as stop:
        return dict(process_pool.run_items(items, make, workers, stop))


def make_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def read_pid(pipe: Path) -> int:
    """The process id that a hanging worker writes; fails if none comes within a minute."""
    descriptor = os.open(pipe, os.O_RDWR)  # opening it for reading alone would wait for the worker without a limit
    try:
        assert select.select([descriptor], [], [], 60)[0], "no worker wrote its process id"
        return int(os.read(descriptor, 100))
    finally:
        os.close(descriptor)


def test_every_item_is_processed_once_and_workers_are_reused() -> None:
    found = results([f"item {number}" for number in range(7)], 2)
    assert {index: result[0] for index, result in found.items()} == {number: f"item {number}" for number in range(7)}
    assert sorted(result[1] for result in found.values())[-1] >= 3  # of two workers one processed at least four
    assert results([], 3) == {}


def test_a_stop_signal_on_another_thread_leaves_the_handlers_alone() -> None:
    """Where a notebook with an event loop may run a verb."""

    def listen() -> None:
        with StopSignal() as stop:
            seen.extend([stop.requested, signal.getsignal(signal.SIGINT)])

    seen, thread = list[object](), threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert seen == [False, signal.getsignal(signal.SIGINT)]


def test_an_item_that_crashes_its_worker_fails_and_the_others_complete(tmp_path, capfd) -> None:
    found = results(["a", "die", "b", f"die-once {tmp_path / 'mark'}", "exit", "raise a word", "c"], 2)
    assert {index for index, result in found.items() if not isinstance(result, Failure)} == {0, 2, 3, 6}
    assert found[1] == Failure("its process was killed by SIGKILL")
    assert found[4] == Failure("its process exited with code 3")
    assert found[5] == Failure("ValueError: a word")
    assert "in process\n" in capfd.readouterr().err, "an unexpected exception keeps its traceback"


def test_one_error_of_the_first_items_is_returned_before_others_begin(tmp_path, capfd) -> None:
    items = ["raise row 1 of '/a/b.wav'", "raise row 2 of '/c.wav'", "raise row 3 of '/d.wav'", *(f"mark {number}" for number in range(9))]
    with StopSignal() as stop:
        first = [index for (index, _), _ in zip(process_pool.run_items(items, make, 1, stop), range(4), strict=False)]
    assert first[:3] == [0, 1, 2] and first[3] == 3, "then it is the caller who stops, or continues"
    mixed = results(["raise a", "raise b", "c", "raise d"], 1)
    assert {index for index, result in mixed.items() if isinstance(result, Failure)} == {0, 1, 3}
    capfd.readouterr()


def test_failures_of_one_kind_have_one_text() -> None:
    first, second = "KeyError: 'a b' in /x/y.wav, line 3", "KeyError: 'c' in /z.flac, line 17"
    assert process_pool.generalize_failure(first) == process_pool.generalize_failure(second) == "KeyError: … in … line …"
    assert process_pool.is_of_the_machine("its process was killed by SIGKILL") and not process_pool.is_of_the_machine(first)
    assert process_pool.is_of_the_machine("OutOfMemoryError: CUDA out of memory")


def test_without_workers_a_failing_item_is_tried_twice_in_this_process(capfd) -> None:
    assert results(["a", "raise x", "b"], 0) == {0: ("a", 0), 1: Failure("ValueError: x"), 2: ("b", 1)}
    assert capfd.readouterr().err.count("in process\n") == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_items_that_the_caller_appends_are_next(workers) -> None:
    items, order = ["a", "b", "c"], []
    with StopSignal() as stop:
        for index, _ in process_pool.run_items(items, make, workers, stop):
            order.append(items[index])
            items += {"a": ["a1", "a2"], "a2": ["a21"]}.get(items[index], [])
    assert order == ["a", "a1", "a2", "a21", "b", "c"]


def test_one_item_that_becomes_several_occupies_several_workers(tmp_path) -> None:
    """Processes start as items need them; also after an item that only succeeds alone."""
    pipe = make_pipe(tmp_path / "pipe")
    items, found = [f"die-once {tmp_path / 'mark'}"], []
    with StopSignal() as stop:
        for index, result in process_pool.run_items(items, make, 2, stop):
            found.append((index, result))
            if index == 0:
                items += [f"read {pipe}", f"write {pipe}"]  # each ends only beside the other
    assert sorted(index for index, _ in found) == [0, 1, 2]
    assert not any(isinstance(result, Failure) for _, result in found)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_parent_gets_the_progress_of_an_item_before_its_result(workers, tmp_path) -> None:
    steps = []
    with StopSignal() as stop:
        items = ["item", "progress one two"]
        for index, _ in process_pool.run_items(items, make, workers, stop, lambda *step: steps.append(step)):
            steps.append((index, "done"))
    assert [step for step in steps if step[0] == 1] == [(1, "one"), (1, "two"), (1, "done")]
    process_pool.send_progress("of no item")
    assert len(steps) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_a_user_error_ends_the_run(workers, tmp_path) -> None:
    with pytest.raises(UserError, match="no such weights"):
        results(["refuse no such weights", "item"], workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_worker_that_cannot_start_ends_the_run_with_its_reason(workers) -> None:
    with pytest.raises(UserError, match="the package 'snac' is missing"), StopSignal() as stop:
        dict(process_pool.run_items(["a", "b", "c"], make_refusing, workers, stop))


def test_after_the_first_signal_only_items_in_progress_complete() -> None:
    for workers in (0, 2):
        with StopSignal() as stop:
            found = {}
            for index, result in process_pool.run_items([f"item {number}" for number in range(9)], make, workers, stop):
                found[index] = result
                if not stop.requested:
                    os.kill(os.getpid(), signal.SIGTERM if workers else signal.SIGINT)
        assert 1 <= len(found) <= 2
        assert not any(isinstance(result, Failure) for result in found.values())


def test_workers_ignore_ctrl_c() -> None:
    """A terminal sends it to them too; the parent alone decides what it means."""
    assert results(["interrupted", "item"], 1) == {0: ("interrupted", 0), 1: ("item", 1)}


def test_the_second_signal_interrupts_and_leaves_no_process(tmp_path) -> None:
    pipe, handler = make_pipe(tmp_path / "pid"), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), StopSignal() as stop:
        for _ in process_pool.run_items(["item", f"hang {pipe}"], make, 2, stop):
            pid = read_pid(pipe)
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
    assert not psutil.pid_exists(pid)
    assert signal.getsignal(signal.SIGINT) is handler


def test_workers_exit_when_their_parent_is_killed(tmp_path) -> None:
    pipes = [make_pipe(tmp_path / "one"), make_pipe(tmp_path / "two")]
    code = (
        "from overtone.data_prep.parallel import process_pool as pool\n"
        "from tests.data_prep.parallel.scripted_worker import make\n"
        f"with pool.StopSignal() as stop: list(pool.run_items({[f'hang {pipe}' for pipe in pipes]!r}, make, 2, stop))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    workers = [psutil.Process(read_pid(pipe)) for pipe in pipes]
    parent.kill()
    parent.wait()
    _, left = psutil.wait_procs(workers, timeout=60)
    assert left == []
