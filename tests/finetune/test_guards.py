"""What stops a run: a number that is not one, and a signal, once politely and then at once."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from finetune.errors import UserError
from finetune.guards import SIGNALS, NotFiniteError, StopSignals, check_finite, check_measured, check_reached

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf), (1.0, -math.inf)])
def test_a_number_that_is_not_one_names_step_and_rows(loss: float, norm: float) -> None:
    with pytest.raises(
        NotFiniteError, match=rf"step 7: loss {loss}, gradient norm {norm}; the update was not applied.*a\.jsonl:3, a\.jsonl:9"
    ):
        check_finite(7, loss, norm, ["a.jsonl:3", "a.jsonl:9"])
    assert issubclass(NotFiniteError, UserError)


def test_a_validation_loss_that_is_not_one() -> None:
    with pytest.raises(NotFiniteError, match=r"step 7: validation loss nan; look at data\.val"):
        check_measured(7, math.nan)


def test_what_the_loss_does_not_reach_is_named() -> None:
    with pytest.raises(UserError, match=r"the loss does not reach a, b, c, d, e \(6 in all\), which would be trained; freeze them"):
        check_reached(list("abcdef"))


def test_finite_numbers_pass() -> None:
    check_finite(1, 0.0, 1e30, [])
    check_measured(1, 0.0)
    check_reached([])


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_the_handlers_come_back(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with StopSignals() as stop:
        assert stop.received is None
        os.kill(os.getpid(), number)
        assert stop.received == number.name
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_the_second_signal_ends_the_process_at_once() -> None:
    script = """
import os, signal, sys, time
from finetune.guards import StopSignals
with StopSignals() as stop:
    os.kill(os.getpid(), signal.SIGTERM)
    print(stop.received, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.returncode) == ("SIGTERM\n", -signal.SIGINT)
