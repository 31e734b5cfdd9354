"""Stop requests: the first signal stops the run after a step, the second one ends the process immediately."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from overtone.finetune.distributed.process_group import World
from overtone.finetune.monitoring.stop_requests import (
    SIGNALS,
    STOP_FILE,
    AgreedStop,
    SignalListener,
    StopRequests,
    agree_to_stop,
    find_save_obstacle,
)
from tests.finetune import fork_server


def soon(requests: StopRequests) -> tuple[str, float | None]:
    """The request, once the listener thread has seen it."""
    waited = time.monotonic() + 100
    while (request := requests.poll()) is None:
        assert time.monotonic() < waited
        time.sleep(0.001)
    return request


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_recorded_and_the_handlers_are_restored(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with StopRequests() as requests:
        assert requests.poll() is None
        os.kill(os.getpid(), number)
        name, age = soon(requests)
        assert name == number.name and age is not None and 0 <= age < 10
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1 and "signals" not in {thread.name for thread in threading.enumerate()}


def test_a_closed_terminal_ends_the_process_at_once() -> None:
    ended, received = list[int](), threading.Event()
    requests = StopRequests()
    requests.end = lambda number: (ended.append(number), received.set())[0]
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may have been started by nohup
    try:
        with requests:
            os.kill(os.getpid(), signal.SIGHUP)
            assert received.wait(60) and ended == [signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_ignored_sighup_stays_ignored() -> None:
    """As nohup starts a run."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalListener((signal.SIGHUP, signal.SIGUSR1), lambda _: None):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN and signal.getsignal(signal.SIGUSR1) != signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_second_signal_ends_the_process_at_once_even_in_a_call_that_does_not_return() -> None:
    script = """
import ctypes, os, signal, threading, time
from overtone.finetune.monitoring.stop_requests import StopRequests
reading, writing = os.pipe()
def kill():
    os.read(reading, 1)  # the other thread is in its call, and stays there, since nobody reads the rest
    os.kill(os.getpid(), signal.SIGINT)
with StopRequests() as requests:
    os.kill(os.getpid(), signal.SIGTERM)
    while not requests.received:
        time.sleep(0.01)
    print(requests.received, flush=True)
    threading.Thread(target=kill).start()
    while True:  # as a collective does, which waits on through signals
        ctypes.CDLL(None).write(writing, bytes(2**24), 2**24)
"""
    done = fork_server.run_command("-c", script)
    assert (done.stdout, done.returncode) == ("SIGTERM\n", 128 + signal.SIGINT)


def test_a_process_that_is_kept_gets_the_second_interrupt_as_an_exception() -> None:
    requests = StopRequests(keeps_process=True)
    requests.end = lambda number: pytest.fail(f"ended by {number}")
    with requests:
        signal.raise_signal(signal.SIGINT)
        assert soon(requests)[0] == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_the_stop_file_is_a_request_until_it_is_removed(tmp_path: Path, world: World) -> None:
    requests = StopRequests(tmp_path)
    assert requests.poll() is None
    (tmp_path / STOP_FILE).touch()
    assert requests.poll() == (f"the file {tmp_path / 'STOP'}", None)
    requests.remove_stop_file(AgreedStop("asked", 1, math.inf), world)
    assert requests.poll() is not None, "only the rank that reported it removes it"
    for _ in range(2):
        requests.remove_stop_file(AgreedStop("asked", 0, math.inf), world)
        assert requests.poll() is None and list(tmp_path.iterdir()) == []


def test_a_used_up_time_budget_is_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    requests = StopRequests(None, 1.5)
    monkeypatch.setattr(time, "monotonic", lambda: now + 89.0)
    assert requests.poll() is None
    monkeypatch.setattr(time, "monotonic", lambda: now + 91.0)
    assert requests.poll() == ("run.deadline_minutes: 1.5", None)


def test_a_preemption_notice_is_a_request_and_is_polled_every_time(tmp_path: Path) -> None:
    words, heard = [None, "a machine will go", "a machine will go"], list[str | None]()

    def notice() -> str | None:
        heard.append(words.pop(0))
        return heard[-1]

    requests = StopRequests(tmp_path, None, notice)
    assert requests.poll() is None
    assert requests.poll() == ("a machine will go", None)
    (tmp_path / STOP_FILE).touch()
    assert requests.poll() == (f"the file {tmp_path / 'STOP'}", None)
    assert len(heard) == 3, "each time: other ranks may be listening together"


def test_on_another_thread_the_signal_handlers_stay() -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    seen = list[bool]()

    def on_thread() -> None:
        with StopRequests() as requests:
            seen.append([signal.getsignal(each) for each in SIGNALS] == before and requests.poll() is None)

    thread = threading.Thread(target=on_thread)
    thread.start()
    thread.join()
    assert seen == [True] and [signal.getsignal(each) for each in SIGNALS] == before


def test_a_save_starts_only_if_it_can_finish_in_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = StopRequests()
    assert agree_to_stop(world, requests, 25.0) is None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    requests.record_signal("SIGTERM")
    monkeypatch.setattr(time, "monotonic", lambda: now + 5.0)
    stop = agree_to_stop(world, requests, 25.0)
    assert stop == AgreedStop("stopped by SIGTERM on rank 0", 0, now + 25.0)
    assert find_save_obstacle(world, stop, 19.9) is None
    assert find_save_obstacle(world, stop, 20.1) == "not saved: the last save took 20.1 s, and 20.0 s of checkpoint.grace_seconds are left"
    monkeypatch.setattr(time, "monotonic", lambda: now + 30.0)
    assert find_save_obstacle(world, stop, 0.1) == "not saved: the last save took 0.1 s, and 0.0 s of checkpoint.grace_seconds are left"


def test_a_stop_file_sets_no_deadline(world: World, tmp_path: Path) -> None:
    (tmp_path / STOP_FILE).touch()
    stop = agree_to_stop(world, StopRequests(tmp_path), 25.0)
    assert stop is not None and stop.until == math.inf and find_save_obstacle(world, stop, 1e9) is None
