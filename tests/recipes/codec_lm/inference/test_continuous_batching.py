"""Codes in a batch that requests join and leave equal those of each request alone."""

from __future__ import annotations

from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.codec_lm.model.sampling_settings import TokenSampling
from overtone.recipes.speech.interface import SpeechRequest
from tests.recipes.codec_lm import tiny_models
from tests.recipes.speech.decoding import schedules

TEXTS = tuple(row["text"] for row in tiny_models.make_rows())


def prove(voice: Any, count: int) -> None:
    alone = schedules.check_schedules(voice, TEXTS, 20, count)
    assert {ended for _, ended in alone.values()} == {True, False}


def test_codes_do_not_depend_on_the_other_requests(voice: Any) -> None:
    prove(voice, 6)


def test_captured_frames_are_kept_while_requests_join_and_leave(voice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules.check_graphs(voice, TEXTS[:2], 6, monkeypatch)


@pytest.mark.slow
@pytest.mark.ci
def test_codes_do_not_depend_on_the_other_requests_in_200_schedules(voice: Any) -> None:
    prove(voice, 200)


@pytest.mark.parametrize("constrained", [True, False])
def test_requests_with_and_without_the_constraint_share_no_batch(voice: Any, constrained: bool) -> None:
    batch, request = voice.open_frames(2), SpeechRequest(TEXTS[0], voice.speakers[0])
    row = voice.join(batch, request, TokenSampling(constrained=constrained))
    with pytest.raises(UserError, match="--unconstrained is not possible"):
        voice.join(batch, request, TokenSampling(constrained=not constrained))
    batch.leave(row)
    voice.join(batch, request, TokenSampling(constrained=not constrained))
