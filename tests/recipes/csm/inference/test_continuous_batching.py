"""Codes in a batch that requests join and leave equal those of each request alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from overtone.recipes.csm.speech_registration import SPEECH
from tests.recipes.csm.tiny_csm import LearnedCsm
from tests.recipes.speech.decoding import schedules

TEXTS = ("She counted the boats.", "It is never late!", "Please close the window, the rain comes in.", "Hi.")


@pytest.fixture(scope="module")
def voice(learned: LearnedCsm) -> Iterator[Any]:
    with closing(SPEECH.inspect(Path(learned.folder)).open()) as opened:
        yield opened


def prove(voice: Any, count: int) -> None:
    alone = schedules.check_schedules(voice, TEXTS, 24, count)
    assert {ended for _, ended in alone.values()} == {True, False}


def test_codes_do_not_depend_on_the_other_requests(voice: Any) -> None:
    prove(voice, 6)


def test_captured_frames_are_kept_while_requests_join_and_leave(voice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules.check_graphs(voice, TEXTS[:2], 6, monkeypatch)


@pytest.mark.slow
@pytest.mark.ci
def test_codes_do_not_depend_on_the_other_requests_in_200_schedules(voice: Any) -> None:
    prove(voice, 200)
