"""What stops a run: a number that is not one, and a signal, once politely and then at once."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from finetune.errors import UserError
from finetune.guards import (
    FEWEST,
    SIGNALS,
    STOP_FILE,
    WINDOW,
    NotFiniteError,
    Recent,
    Signals,
    Stop,
    StopRequests,
    agree_to_stop,
    check_measured,
    check_reached,
    check_sound,
    is_finite,
    not_finite,
    remember,
    spiked,
    too_late,
    unusual,
)
from finetune.world import World

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf), (1.0, -math.inf)])
def test_a_number_that_is_not_one_names_step_and_rows(loss: float, norm: float) -> None:
    assert not is_finite(loss, norm)
    error = not_finite(7, loss, norm, ["a.jsonl:3", "a.jsonl:9"])
    assert isinstance(error, UserError)
    assert str(error).startswith(f"step 7: loss {loss}, gradient norm {norm}; the update was not applied. Its rows: a.jsonl:3, a.jsonl:9. ")


def test_a_checkpoint_that_holds_such_a_number_is_refused() -> None:
    check_sound(7, [])
    with pytest.raises(
        NotFiniteError, match=r"step 7: a, b, c, d, e \(6 in all\) hold NaN or infinity, so this checkpoint was not committed"
    ):
        check_sound(7, list("fedcba"))


def test_a_validation_loss_that_is_not_one() -> None:
    with pytest.raises(NotFiniteError, match=r"step 7: validation loss nan; look at data\.val"):
        check_measured(7, math.nan)


def test_what_the_loss_does_not_reach_is_named() -> None:
    with pytest.raises(UserError, match=r"the loss does not reach a, b, c, d, e \(6 in all\), which would be trained; freeze them"):
        check_reached(list("abcdef"))


def test_finite_numbers_pass() -> None:
    assert is_finite(0.0, 1e30)
    check_measured(1, 0.0)
    check_reached([])


def test_what_is_unusual_is_told_with_the_usual() -> None:
    recent = tuple((2.0 + number % 3, 1.0) for number in range(FEWEST))
    assert unusual(29.0, 9.0, recent, 10.0) is None and unusual(0.0, 0.0, recent, 10.0) is None
    assert unusual(31.0, 11.0, recent, 10.0) == "loss 31 is more than train.spike: 10 times the usual 3 (median of 10 updates)"
    assert unusual(3.0, 11.0, recent, 10.0) == "gradient norm 11 is more than train.spike: 10 times the usual 1 (median of 10 updates)"
    assert unusual(31.0, 11.0, recent, None) is None, "nobody asked"
    assert unusual(31.0, 11.0, recent[1:], 10.0) is None, "too few to tell"
    error = spiked(7, "loss 31 is more", ["a.jsonl:3", "a.jsonl:9"])
    assert isinstance(error, NotFiniteError) and error.reason == "spike"
    assert str(error).startswith("step 7: loss 31 is more; the update was not applied. Its rows: a.jsonl:3, a.jsonl:9. Look at them")


def test_only_the_last_updates_are_remembered() -> None:
    recent: Recent = ()
    for number in range(WINDOW + 5):
        recent = remember(recent, float(number), 1.0)
    assert len(recent) == WINDOW and recent[0] == (5.0, 1.0) and recent[-1] == (WINDOW + 4.0, 1.0)


def soon(requests: StopRequests) -> tuple[str, float | None]:
    """What is asked for, once the thread has seen it."""
    waited = time.monotonic() + 10
    while (asked := requests.asked()) is None:
        assert time.monotonic() < waited
        time.sleep(0.001)
    return asked


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_the_handlers_come_back(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with StopRequests() as requests:
        assert requests.asked() is None
        os.kill(os.getpid(), number)
        name, age = soon(requests)
        assert name == number.name and age is not None and 0 <= age < 10
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1 and "signals" not in {thread.name for thread in threading.enumerate()}


def test_a_closed_terminal_ends_the_process_at_once() -> None:
    ended, received = list[int](), threading.Event()
    requests = StopRequests()
    requests.end = lambda number: (ended.append(number), received.set())[0]
    with requests:
        os.kill(os.getpid(), signal.SIGHUP)
        assert received.wait(60) and ended == [signal.SIGHUP]


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    """As nohup starts a run."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals((signal.SIGHUP, signal.SIGUSR1), lambda _: None):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN and signal.getsignal(signal.SIGUSR1) != signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_second_signal_ends_the_process_at_once_even_in_a_call_that_does_not_return() -> None:
    script = """
import ctypes, os, signal, threading, time
from finetune.guards import StopRequests
def kill():
    for number in (signal.SIGTERM, signal.SIGINT):
        time.sleep(0.5)
        os.kill(os.getpid(), number)
with StopRequests() as requests:
    threading.Thread(target=kill).start()
    while not requests.received:
        time.sleep(0.01)
    print(requests.received, flush=True)
    while True:  # as a collective does, which waits on through signals
        ctypes.CDLL(None).sleep(60)
"""
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("SIGTERM\n", 128 + signal.SIGINT)
    assert time.monotonic() - started < 50


def test_a_file_asks_until_it_is_taken_away(tmp_path: Path, world: World) -> None:
    requests = StopRequests(tmp_path)
    assert requests.asked() is None
    (tmp_path / STOP_FILE).touch()
    assert requests.asked() == (f"the file {tmp_path / 'STOP'}", None)
    requests.done(Stop("asked", 1, math.inf), world)
    assert requests.asked() is not None, "it is another rank's to take away"
    for _ in range(2):
        requests.done(Stop("asked", 0, math.inf), world)
        assert requests.asked() is None and list(tmp_path.iterdir()) == []


def test_a_spent_budget_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = StopRequests(None, 1.5)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 89.0)
    assert requests.asked() is None
    monkeypatch.setattr(time, "monotonic", lambda: now + 91.0)
    assert requests.asked() == ("run.deadline_minutes: 1.5", None)


def test_word_that_the_machine_will_go_asks_and_is_listened_for_whatever_else_asks(tmp_path: Path) -> None:
    words, heard = [None, "a machine will go", "a machine will go"], list[str | None]()

    def notice() -> str | None:
        heard.append(words.pop(0))
        return heard[-1]

    requests = StopRequests(tmp_path, None, notice)
    assert requests.asked() is None
    assert requests.asked() == ("a machine will go", None)
    (tmp_path / STOP_FILE).touch()
    assert requests.asked() == (f"the file {tmp_path / 'STOP'}", None)
    assert len(heard) == 3, "each time: other ranks may be listening together"


def test_on_another_thread_the_signals_are_left_to_their_owner() -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    seen = list[bool]()

    def elsewhere() -> None:
        with StopRequests() as requests:
            seen.append([signal.getsignal(each) for each in SIGNALS] == before and requests.asked() is None)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [True] and [signal.getsignal(each) for each in SIGNALS] == before


def test_a_save_begins_only_if_it_can_end_before_the_launcher_kills(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = StopRequests()
    assert agree_to_stop(world, requests, 25.0) is None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    requests.note("SIGTERM")
    monkeypatch.setattr(time, "monotonic", lambda: now + 5.0)
    stop = agree_to_stop(world, requests, 25.0)
    assert stop == Stop("stopped by SIGTERM on rank 0", 0, now + 25.0)
    assert too_late(world, stop, 19.9) is None
    assert too_late(world, stop, 20.1) == "not saved: the last save took 20.1 s, and 20.0 s of checkpoint.grace_seconds are left"
    monkeypatch.setattr(time, "monotonic", lambda: now + 30.0)
    assert too_late(world, stop, 0.1) == "not saved: the last save took 0.1 s, and 0.0 s of checkpoint.grace_seconds are left"


def test_nobody_enforces_a_file(world: World, tmp_path: Path) -> None:
    (tmp_path / STOP_FILE).touch()
    stop = agree_to_stop(world, StopRequests(tmp_path), 25.0)
    assert stop is not None and stop.until == math.inf and too_late(world, stop, 1e9) is None
