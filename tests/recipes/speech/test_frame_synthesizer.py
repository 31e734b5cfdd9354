"""Tests of `overtone.recipes.speech.frame_synthesizer`, with a session that counts and a codec that repeats each code."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor

from overtone.finetune.errors import UserError
from overtone.recipes.speech.decoding.frame_loop import DecodedCodes, FrameLoop
from overtone.recipes.speech.frame_synthesizer import FrameVoice
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from tests.recipes.voice_clone.tones import ToneFolder, tone_folder

END = 99
SAMPLES = 3
"""Of a frame."""


class CountingSession(FrameLoop):
    """Frame t of row b has the codes (10·b + t, 1); a row ends after as many frames as its text has letters."""

    def __init__(self, texts: Sequence[str], frames: int) -> None:
        super().__init__(0, torch.zeros(frames, len(texts), 2, dtype=torch.int64))
        self.lengths = torch.tensor([len(text) for text in texts])
        self.broken = any("?" in text for text in texts)

    @property
    def ended(self) -> Tensor:
        return self.frame_count > self.lengths

    def find_ends(self, codes: Tensor) -> Tensor:
        return codes[..., 0] == END

    def check_well_formed(self) -> None:
        if self.broken:
            raise UserError("no code")

    def run_frame(self, size: int) -> None:  # of the loop
        first = torch.where(self.frame_count < self.lengths, 10 * torch.arange(len(self.lengths)) + self.frame_count, END)
        self.codes[self.frame_count] = torch.stack([first, torch.ones_like(first)], 1)


class CountingVoice(FrameVoice):
    """Its codec gives out the sound of the last frame only at the end, as one that looks ahead does."""

    rate = 10
    frame_rate = 10.0

    def start_session(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> CountingSession:
        return CountingSession([request.text for request in requests], round(sampling.max_seconds * 10))

    def start_batch(self, slots: int) -> NoReturn:
        raise AssertionError("these requests are not batched")

    def decode_waves(self, requests: Sequence[SpeechRequest], results: Sequence[DecodedCodes]) -> list[np.ndarray]:
        assert len(requests) == len(results)
        return [one.codes[:, 0].repeat_interleave(SAMPLES).float().numpy() for one in results]

    def decode_stream(self, request: SpeechRequest, pieces: Iterator[Tensor]) -> Iterator[Tensor]:
        assert request.speaker == "low"
        held = torch.zeros(0)
        for piece in pieces:
            sound = torch.cat([held, piece[:, 0].repeat_interleave(SAMPLES).float()])
            held = sound[-SAMPLES:]
            yield sound[:-SAMPLES]
        yield held


@pytest.fixture
def voice(tmp_path: Path) -> CountingVoice:
    return CountingVoice(ToneFolder.inspect(tone_folder(tmp_path / "tones")), ["low"], {"temperature": 1.0, "do_sample": True})


def drain(voice: FrameVoice, text: str, seconds: float = 9.0) -> tuple[list[list[float]], object]:
    pieces, chunks = voice.stream(SpeechRequest(text, "low"), SpeechSampling(max_seconds=seconds)), list[list[float]]()
    while True:
        try:
            chunks.append(next(pieces).tolist())
        except StopIteration as end:
            return chunks, end.value


def test_each_request_of_a_batch_has_its_own_codes_and_end(voice: CountingVoice) -> None:
    first, second = voice.speak([SpeechRequest("abc", "low"), SpeechRequest("ab", "low")], SpeechSampling(max_seconds=0.4))
    assert first.codes.tolist() == [[0, 1], [1, 1], [2, 1]] and second.codes.tolist() == [[10, 1], [11, 1]]
    assert first.wave.tolist() == [0.0] * 3 + [1.0] * 3 + [2.0] * 3 and (first.rate, first.ended, second.ended) == (10, True, True)
    (cut,) = voice.speak([SpeechRequest("abcdef", "low")], SpeechSampling(max_seconds=0.2))
    assert len(cut.codes) == 2 and not cut.ended
    assert voice.speak([], SpeechSampling()) == []


def test_a_stream_gives_the_wave_in_pieces_without_empty_ones(voice: CountingVoice) -> None:
    text = "abcdefghijk"
    chunks, result = drain(voice, text)
    (whole,) = voice.speak([SpeechRequest(text, "low")], SpeechSampling(max_seconds=9))
    assert [len(chunk) for chunk in chunks] == [6, 12, 12, 3], "pieces of 1, 2, 4 and 4 frames, of which the last frame is held back"
    assert result.wave.tolist() == whole.wave.tolist() == [*itertools.chain(*chunks)]  # type: ignore[attr-defined]
    assert result.codes.tolist() == whole.codes.tolist() and result.ended  # type: ignore[attr-defined]


def test_a_stream_of_no_frames_is_silent(voice: CountingVoice) -> None:
    chunks, result = drain(voice, "abc", seconds=0.0)
    assert chunks == [] and result.wave.shape == (0,) and not result.ended  # type: ignore[attr-defined]


def test_what_is_no_code_is_an_error_whole_and_streamed(voice: CountingVoice) -> None:
    with pytest.raises(UserError, match="no code"):
        voice.speak([SpeechRequest("ab?", "low")], SpeechSampling(max_seconds=1))
    with pytest.raises(UserError, match="no code"):
        drain(voice, "ab?")


def test_requests_are_checked_before_anything_is_generated(voice: CountingVoice) -> None:
    with pytest.raises(UserError, match="speaker eve: there are low, high"):
        voice.speak([SpeechRequest("ab", "low"), SpeechRequest("ab", "eve")], SpeechSampling())
    with pytest.raises(UserError, match="speaker eve: there are low, high"):
        next(voice.stream(SpeechRequest("ab", "eve"), SpeechSampling()))
