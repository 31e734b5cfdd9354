"""Tests of `overtone.recipes.speech.continuous_speech_batch`: the sound of each request in a batch is that of the request alone, chunk
by chunk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.qwen3_tts.inference.synthesizer import Synthesizer, open_synthesizer
from overtone.recipes.serving.running_batch_interface import LENGTH
from overtone.recipes.speech.continuous_speech_batch import growing_chunk_sizes
from overtone.recipes.speech.interface import BatchingVoice, SpeechRequest, SpeechSampling, SpokenRequest


@pytest.fixture(scope="module")
def voice(fresh: Any, export: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synthesizer]:
    with closing(open_synthesizer(export(fresh, "custom_voice", tmp_path_factory.mktemp("batched") / "tuned"))) as opened:
        yield opened


def test_chunk_sizes_grow() -> None:
    assert [*itertools.islice(growing_chunk_sizes(), 8)] == [1, 2, 4, 8, 16, 32, 32, 32]


def make_request(seed: int, frames: int) -> SpokenRequest:
    return SpokenRequest(SpeechRequest("It is never late!", "anna"), SpeechSampling(seed=seed, max_seconds=frames / 12.5))


def test_the_chunks_of_each_request_are_those_of_its_stream(voice: Synthesizer) -> None:
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
    for chunks, expected in zip(found, alone, strict=True):
        assert [len(chunk) for chunk in chunks] == [len(chunk) for chunk in expected]
        np.testing.assert_array_equal(np.concatenate(chunks), np.concatenate(expected))


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
