"""Tests of `overtone.recipes.speech.frame_synthesizer`, with a batch that counts and a codec that repeats each code."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from overtone.finetune.errors import UserError
from overtone.recipes.speech.continuous_speech_batch import NewFrames
from overtone.recipes.speech.decoding.continuous_batching import FrameBatch
from overtone.recipes.speech.decoding.per_row_sampling import RowSampling
from overtone.recipes.speech.decoding.ragged_kv_cache import RowSlots, count_rows
from overtone.recipes.speech.decoding.token_sampling import CodeSampler
from overtone.recipes.speech.exported_speech_folder import SpeechFolder
from overtone.recipes.speech.frame_synthesizer import FrameVoice
from overtone.recipes.speech.interface import SpeechRequest, SpeechResult, SpeechSampling
from overtone.recipes.speech.sampling_settings import SamplingScheme

END = 99
SAMPLES = 3
"""Of a frame."""


@dataclass(frozen=True)
class CountingFolder(SpeechFolder):
    speakers: tuple[str, ...] = ("high", "low")
    longest_text: int = 500

    def count_tokens(self, text: str, request: SpeechRequest) -> int:
        return len(text)

    def choose_language(self, given: str | None, speaker: str | None) -> None:
        pass


class CountedSlots(RowSlots):
    """A cache of nothing."""

    def _grow(self, size: int) -> None:
        pass

    def read_prompt(self, row: int, prompt: Tensor) -> Tensor:
        self._set_length(row, len(prompt))
        return prompt[:, None]


class CountingBatch(FrameBatch[CountedSlots, str, CodeSampler]):
    """Frame t of row b has the codes (10·b + t, 1); a row ends after as many frames as its text has letters."""

    def __init__(self, requests: int) -> None:
        cache = CountedSlots(count_rows(requests), torch.device("cpu"))
        super().__init__(cache, RowSampling(cache.rows, torch.device("cpu")), requests, 2, None)
        self.lengths = torch.zeros(cache.rows, dtype=torch.int64)

    @torch.inference_mode()
    def join(self, prompt: str, sampler: CodeSampler, seed: int, limit: int) -> int:
        row, _ = self.take_row(torch.zeros(len(prompt)), sampler, seed, limit)
        self.lengths[row] = sum(map(str.isalpha, prompt))
        return row

    def find_ends(self, codes: Tensor) -> Tensor:
        return codes[..., 0] == END

    def run_frame(self, size: int) -> None:  # of the batch
        first = torch.where(self.frame < self.lengths, 10 * torch.arange(len(self.lengths)) + self.frame, END)
        self.codes.copy_(torch.stack([first, torch.ones_like(first)], 1))


class CountingVoice(FrameVoice[str, CodeSampler, list[Tensor]]):
    """Its codec gives out the sound of the last frame only at the end, as one that looks ahead does."""

    rate = 10
    frame_rate = 10.0

    def make_prompt(self, request: SpeechRequest) -> str:
        return request.text

    def make_sampler(self, sampling: SpeechSampling) -> CodeSampler:
        return CodeSampler(sampling.greedy)

    def open_frames(self, requests: int) -> CountingBatch:
        return CountingBatch(requests)

    def decode_waves(self, requests: Sequence[SpeechRequest], codes: Sequence[Tensor]) -> list[np.ndarray]:
        assert len(requests) == len(codes)
        return [one[:, 0].repeat_interleave(SAMPLES).float().numpy() for one in codes]

    def open_stream(self, request: SpeechRequest) -> list[Tensor]:
        assert request.speaker == "low"
        return [torch.zeros(0)]

    def decode_frames(self, new: Sequence[NewFrames[list[Tensor]]]) -> list[Tensor]:
        waves = []
        for one in new:
            sound = torch.cat([one.stream.pop(), one.codes[:, 0].repeat_interleave(SAMPLES).float()])
            held = 0 if one.last else SAMPLES
            one.stream.append(sound[len(sound) - held :])
            waves.append(sound[: len(sound) - held])
        return waves


@pytest.fixture
def voice(tmp_path: Path) -> CountingVoice:
    return CountingVoice(CountingFolder(tmp_path, {}), SamplingScheme({"temperature": 1.0, "do_sample": True}, {}, {}))


def drain(voice: CountingVoice, text: str, seconds: float = 9.0) -> tuple[list[list[float]], SpeechResult]:
    pieces, chunks = voice.stream(SpeechRequest(text, "low"), SpeechSampling(max_seconds=seconds)), list[list[float]]()
    while True:
        try:
            chunks.append(next(pieces).tolist())
        except StopIteration as end:
            result: SpeechResult = end.value
            return chunks, result


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
    assert [len(chunk) for chunk in chunks] == [6, 12, 15], "pieces of 1, 2, 4 and 4 frames; the last frame is held back to the end"
    assert result.wave.tolist() == whole.wave.tolist() == [*itertools.chain(*chunks)]
    assert result.ended and not drain(voice, text, seconds=0.5)[1].ended


def test_speech_that_ends_at_once_is_silent(voice: CountingVoice) -> None:
    chunks, result = drain(voice, "1")
    assert chunks == [] and result.wave.shape == (0,) and result.ended
    (whole,) = voice.speak([SpeechRequest("1", "low")], SpeechSampling(max_seconds=9))
    assert whole.codes.shape == (0, 2) and whole.ended


def test_room_is_made_once_for_the_longest_prompt_of_a_batch(voice: CountingVoice, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 + 5,160 slots, rounded up; the end of a text of digits is its first frame."""
    made = list[int]()
    monkeypatch.setattr(CountedSlots, "_grow", lambda _, size: made.append(size))
    voice.speak([SpeechRequest("1" * count, "low") for count in (30, 500)], SpeechSampling(max_seconds=516))
    assert made == [6144]


def test_requests_are_checked_before_anything_is_generated(voice: CountingVoice) -> None:
    with pytest.raises(UserError, match="--speaker eve: .* does not have this speaker; it has high, low"):
        voice.speak([SpeechRequest("ab", "low"), SpeechRequest("ab", "eve")], SpeechSampling())
    with pytest.raises(UserError, match="--speaker eve: .* does not have this speaker; it has high, low"):
        next(voice.stream(SpeechRequest("ab", "eve"), SpeechSampling()))
