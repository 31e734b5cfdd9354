"""Tests of `overtone.recipes.speech.continuous_speech_batch`: the sound of each request in a batch is that of the request alone, chunk
by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch

from overtone.finetune.errors import UserError
from overtone.recipes.qwen3_tts.inference.synthesizer import Synthesizer, open_synthesizer
from overtone.recipes.serving.running_batch_interface import LENGTH
from overtone.recipes.speech.continuous_speech_batch import NewFrames, SpeechBatch
from overtone.recipes.speech.decoding.continuous_batching import RowFrame
from overtone.recipes.speech.interface import BatchingVoice, SpeechRequest, SpeechSampling, SpokenRequest


@pytest.fixture(scope="module")
def voice(fresh: Any, export: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synthesizer]:
    with closing(open_synthesizer(export(fresh, "custom_voice", tmp_path_factory.mktemp("batched") / "tuned"))) as opened:
        yield opened


class CountingCodec:
    """A codec whose samples are the frames of a chunk, and which records the chunks that it decodes together."""

    def __init__(self, joins_streams: bool) -> None:
        self.joins_streams, self.calls = joins_streams, list[list[int]]()

    def open_stream(self, request: SpeechRequest) -> None:
        return None

    def decode_frames(self, new: Sequence[NewFrames[None]]) -> list[torch.Tensor]:
        self.calls.append([len(one.codes) for one in new])
        return [one.codes[:, 0].float() for one in new]


class CountedFrames:
    """A batch in which row b speaks `lengths[b]` frames."""

    slots = 9

    def __init__(self, lengths: Sequence[int]) -> None:
        self.left, self.codes = dict[int, int](), torch.zeros(9, 2, dtype=torch.int64)
        self._lengths = iter(lengths)

    def join_or_free(self, join: Callable[[], int]) -> int:
        return join()

    def start(self, request: SpeechRequest, sampling: SpeechSampling) -> int:
        row = len(self.left)
        self.left[row] = next(self._lengths)
        return row

    def step(self) -> dict[int, RowFrame]:
        self.left = {row: count - 1 for row, count in self.left.items() if count}
        return {row: RowFrame(torch.zeros(2, dtype=torch.int64), not count, False) for row, count in self.left.items()}


def run_counted(codec: CountingCodec, lengths: Sequence[int]) -> list[int]:
    """Speak so many frames in each row, which join in successive steps; returns the number of samples of each."""
    frames: Any = CountedFrames(lengths)
    batch, waiting, samples = SpeechBatch(frames, frames.start, codec), len(lengths), [0] * len(lengths)
    while waiting or any(frames.left.values()):
        if waiting:
            batch.join(make_request(0, 1))
            waiting -= 1
        for row, progress in batch.step().items():
            samples[row] += 0 if progress.piece is None else len(progress.piece)
    return samples


def test_chunks_of_a_stream_grow() -> None:
    codec = CountingCodec(False)
    assert run_counted(codec, [100]) == [100]
    assert codec.calls == [[1], [2], [4], [8], [16], [32], [32], [5]]


def test_chunks_of_a_codec_that_decodes_streams_apart_do_not_depend_on_the_others() -> None:
    codec = CountingCodec(False)
    assert run_counted(codec, [9, 12]) == [9, 12]
    assert codec.calls == [[1], [1], [2], [2], [4], [4], [2], [5]]


def test_streams_are_decoded_together_when_one_of_them_is_due() -> None:
    """The second one joins a step later. No chunk has more frames than its stream has decoded, and one."""
    codec = CountingCodec(True)
    assert run_counted(codec, [9, 12]) == [9, 12]
    assert codec.calls == [[1], [1, 1], [2, 2], [4, 4], [1, 1], [4]]


def make_request(seed: int, frames: int) -> SpokenRequest:
    return SpokenRequest(SpeechRequest("It is never late!", "anna"), SpeechSampling(seed=seed, max_seconds=frames / 12.5))


def test_the_wave_of_each_request_is_that_of_its_stream_and_of_the_whole(voice: Synthesizer) -> None:
    assert isinstance(voice, BatchingVoice)
    batch, arrivals = voice.open_batch(2, 9.0), [make_request(1, 9), make_request(2, 14), make_request(3, 4)]
    alone = [[*voice.stream(one.request, one.sampling)] for one in arrivals]
    running, found = dict[int, int](), [list[np.ndarray]() for _ in arrivals]
    for number in range(len(arrivals)):
        while len(running) == batch.slots:
            step(batch, running, found)
        running[batch.join(arrivals[number])] = number
        step(batch, running, found)
    while running:
        step(batch, running, found)
    for one, chunks, expected in zip(arrivals, found, alone, strict=True):
        np.testing.assert_array_equal(np.concatenate(chunks), np.concatenate(expected))
        np.testing.assert_array_equal(np.concatenate(chunks), voice.speak([one.request], one.sampling)[0].wave)


def step(batch: Any, running: dict[int, int], found: list[list[np.ndarray]]) -> None:
    for slot, progress in batch.step().items():
        if progress.piece is not None:
            found[running[slot]].append(progress.piece)
        if progress.over is not None:
            assert progress.over == LENGTH
            del running[slot]


def test_a_request_that_leaves_frees_its_slot(voice: Synthesizer) -> None:
    batch = voice.open_batch(2, 9.0)
    slots = [batch.join(make_request(1, 9)), batch.join(make_request(2, 9))]
    batch.step()
    batch.leave(slots[0])
    assert batch.step().keys() == {slots[1]} and batch.join(make_request(3, 9)) == slots[0]


def test_a_request_that_cannot_be_spoken_takes_no_slot(voice: Synthesizer) -> None:
    batch = voice.open_batch(2, 9.0)
    with pytest.raises(UserError, match="no-one"):
        batch.join(SpokenRequest(SpeechRequest("Hello.", "no-one"), SpeechSampling()))
    assert batch.step() == {}
