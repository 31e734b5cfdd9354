"""Codes in a batch that requests join and leave equal those of each request alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from overtone.recipes.qwen3_tts.inference.synthesizer import Request, Synthesizer, open_synthesizer
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from tests.recipes.speech.decoding import schedules

TEXTS = ("She counted the boats.", "It is never late!", "Please close the window, the rain comes in over the books.", "Hi.")


@pytest.fixture(scope="module")
def voice(fresh: Any, export: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synthesizer]:
    folder: Path = export(fresh, "custom_voice", tmp_path_factory.mktemp("batched") / "tuned")
    with closing(open_synthesizer(folder)) as opened:
        yield opened


def test_codes_do_not_depend_on_the_other_requests(voice: Synthesizer) -> None:
    schedules.check_schedules(voice, TEXTS, 12, 10)


def test_captured_frames_are_kept_while_requests_join_and_leave(voice: Synthesizer, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules.check_graphs(voice, TEXTS[:2], 6, monkeypatch)


@pytest.mark.slow
@pytest.mark.ci
def test_codes_do_not_depend_on_the_other_requests_in_200_schedules(voice: Synthesizer) -> None:
    schedules.check_schedules(voice, TEXTS, 12, 200)


def test_streamed_text_is_added_to_the_frames_of_its_row(voice: Synthesizer) -> None:
    sampling = SpeechSampling(greedy=True, max_seconds=0.8)
    request, other = Request(TEXTS[2], "anna", streamed_text=True), SpeechRequest(TEXTS[0], "bert")
    (alone,) = voice.speak([request], sampling)
    batch = voice.open_frames(2)
    voice.join(batch, other, sampling)
    batch.step()
    row = voice.join(batch, request, sampling)
    codes = [batch.step()[row].codes for _ in alone.codes]
    assert [one.tolist() for one in codes if one is not None] == alone.codes.tolist()
