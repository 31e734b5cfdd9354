"""A rank that stands still for longer than the others wait ends with a sentence when it continues, and the run resumes bit by bit."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.ledger import record
from tests.reliability import victims
from tests.reliability.test_kill import RANKS, STEPS, arguments, check_equal, steps_told


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("paused", range(RANKS))
def test_a_paused_rank_ends_with_a_sentence_and_the_run_resumes(paused: int, tmp_path: Path) -> None:
    run, witness, whole = tmp_path / "run", tmp_path / "witness", tmp_path / "whole"
    victims.finish(whole / "witness", RANKS, arguments(whole, whole / "run"))
    ranks = victims.start(witness, RANKS, arguments(tmp_path, run))
    deadline = time.monotonic() + 60
    while not steps_told(run) and time.monotonic() < deadline:
        time.sleep(0.005)
    process = ranks[paused].pid
    assert process is not None
    os.kill(process, signal.SIGSTOP)
    other = ranks[1 - paused]
    other.join(60)
    assert other.exitcode == 1, "the other rank does not wait for ever"
    os.kill(process, signal.SIGCONT)
    codes, said = victims.wait(ranks), victims.said(witness)
    assert all(code in (1, 2) for code in codes), (codes, said)
    assert "Traceback" not in said, said
    # Rank 0 has the store of these ranks, so its silence is seen there.
    assert (f"rank {paused} is missing: no heartbeat for 7 s" if paused else "store does not respond: no reply for 7 s") in said, said
    victims.finish(witness, RANKS, arguments(tmp_path, run))
    check_equal(tmp_path, whole, STEPS)
    record("SIGSTOP of one of 2 ranks until the other has left, then SIGCONT: both end with a sentence, and the run resumes bit by bit", 1)
