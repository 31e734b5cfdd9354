"""Tests of `overtone.recipes.speech.decoding.continuous_batching`. The recipes' own `test_continuous_batching.py` compare codes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from overtone.finetune.errors import UserError
from overtone.recipes.speech.decoding.cached_decoder_layers import CachedDecoderLayers
from overtone.recipes.speech.decoding.continuous_batching import FrameBatch
from overtone.recipes.speech.decoding.per_row_sampling import IDLE, RowSampling
from overtone.recipes.speech.decoding.ragged_kv_cache import SHORTEST_WINDOW, RowCache, count_rows
from overtone.recipes.speech.decoding.token_sampling import CodeSampler
from tests.recipes.speech.decoding.recorded_graphs import RecordedGraph, imitate_graphs


class RandomNumbers(FrameBatch[RowCache, Tensor, CodeSampler]):
    """Its codes are the random numbers of the frame, times 1000, and speech ends with a number below 50."""

    def __init__(self, cache: RowCache, requests: int, most: int | None = None) -> None:
        super().__init__(cache, RowSampling(cache.rows, torch.device("cpu")), requests, 3, most)

    @torch.inference_mode()
    def join(self, prompt: Tensor, sampler: CodeSampler, seed: int, limit: int) -> int:
        return self.take_row(prompt, sampler, seed, limit)[0]

    def find_ends(self, codes: Tensor) -> Tensor:
        return codes[..., 0] < 50

    def run_frame(self, size: int) -> None:
        self.codes.copy_((self.random[0].T * 1000).long())


@pytest.fixture
def batch() -> RandomNumbers:
    config = LlamaConfig(
        vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2
    )
    layers = CachedDecoderLayers(LlamaModel(config).eval().requires_grad_(False), "Llama")
    return RandomNumbers(RowCache(layers, count_rows(2)), 2)


def draw_random_numbers(seeds: Sequence[int], frames: int, codebooks: int) -> Tensor:
    """[frames, codebooks, rows] fp64 in [0, 1): the random numbers of requests with these seeds."""
    streams = [np.random.Generator(np.random.Philox(seed)).random((frames, codebooks)) for seed in seeds]
    return torch.from_numpy(np.stack(streams, -1))


def join(batch: RandomNumbers, seed: int, limit: int) -> int:
    return batch.join(torch.zeros(2, 16), IDLE, seed, limit)


def test_the_random_numbers_of_a_request_are_those_of_its_seed(batch: RandomNumbers) -> None:
    expected = (draw_random_numbers([5, 6], 6, 3) * 1000).long()
    first = join(batch, 5, 6)
    batch.step()
    second = join(batch, 6, 6)
    for frame in range(1, 6):
        found = batch.step()
        for row, stream, number in ((first, 0, frame), (second, 1, frame - 1)):
            codes = found[row].codes
            assert codes is not None and torch.equal(codes, expected[number, :, stream])
            assert found[row].over == (number == 5)


def test_a_row_is_free_after_its_last_frame(batch: RandomNumbers) -> None:
    short, long = join(batch, 0, 1), join(batch, 1, 5)
    with pytest.raises(RuntimeError, match="all 2 rows are taken"):
        join(batch, 2, 5)
    assert batch.step()[short].over and batch.occupied.tolist()[:2] == [0, 1]
    assert join(batch, 2, 5) == short
    assert batch.step().keys() == {short, long} and batch.frame.tolist()[:2] == [1, 2]
    batch.leave(long)
    batch.leave(long)
    assert batch.step().keys() == {short} and batch.cache.lengths.tolist()[:2] == [4, 0]


def test_a_group_is_generated_up_to_the_end_of_each_request(batch: RandomNumbers) -> None:
    """A seed whose numbers are below 0.05 in the first frame has no codes."""
    starts = draw_random_numbers(range(100), 1, 3)[0, 0]
    rows = [join(batch, int((starts < 0.05).nonzero()[0]), 9), join(batch, 5, 2)]
    silent, cut = batch.finish(rows)
    assert silent.codes.shape == (0, 3) and silent.ended
    assert torch.equal(cut.codes, (draw_random_numbers([5], 2, 3)[..., 0] * 1000).long()) and not cut.ended


def test_the_positions_of_the_model_limit_a_request(batch: RandomNumbers) -> None:
    batch = RandomNumbers(batch.cache, 2, 6)
    (cut,) = batch.finish([join(batch, 5, 100)])
    assert len(cut.codes) == 4 and not cut.ended
    with pytest.raises(UserError, match="^a prompt of 6 tokens fills the model's 6 positions; shorten the text$"):
        batch.join(torch.zeros(6, 16), IDLE, 0, 1)
    assert not batch.is_running


def test_speech_ends_before_its_limit(batch: RandomNumbers) -> None:
    row, numbers = join(batch, 11, 1000), draw_random_numbers([11], 1000, 3)[:, 0, 0]
    end = int((numbers < 0.05).int().argmax())
    for _ in range(end):
        assert not batch.step()[row].over
    last = batch.step()[row]
    assert (last.codes, last.over, last.ended) == (None, True, True) and batch.step() == {}


def test_frames_are_captured_again_only_after_the_cache_has_grown(batch: RandomNumbers, monkeypatch: pytest.MonkeyPatch) -> None:
    imitate_graphs(monkeypatch)
    batch = RandomNumbers(batch.cache, 2)
    batch.capture_frames(10, IDLE)
    windows = [64, 128, 256, 512]
    assert batch.cache.list_windows() == windows and RecordedGraph.captured == len(windows)
    for seed, limit in ((5, 6), (6, 400), (7, 511)):  # the last one has no room beside its prompt
        row, numbers = join(batch, seed, limit), (draw_random_numbers([seed], 4, 3) * 1000).long()
        for expected in numbers[..., 0]:
            codes = batch.step()[row].codes
            assert codes is not None and torch.equal(codes, expected)
        batch.leave(row)
        assert RecordedGraph.captured == len(windows) + (limit == 511)


@pytest.mark.parametrize(("slots", "smaller"), [(2, "--batch 1"), (4, "--batch 1"), (8, "a smaller --batch")])
@pytest.mark.parametrize("failing", ["reserve", "run_frame"])
def test_the_batch_of_a_server_is_too_large_for_the_memory(
    batch: RandomNumbers, slots: int, smaller: str, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    imitate_graphs(monkeypatch)
    batch = RandomNumbers(batch.cache, slots)

    def fail(size: int) -> None:
        raise torch.OutOfMemoryError(f"{size} slots")

    monkeypatch.setattr(batch.cache if failing == "reserve" else batch, failing, fail)
    message = f"--batch {slots}: the GPU has no memory for so many requests of 1,099 frames; choose {smaller} or a smaller --max-seconds"
    with pytest.raises(UserError, match=f"^{message}$"):
        batch.capture_frames(1099, IDLE)


def test_no_room_is_made_for_more_than_the_positions_of_the_model(batch: RandomNumbers, monkeypatch: pytest.MonkeyPatch) -> None:
    imitate_graphs(monkeypatch)
    batch = RandomNumbers(batch.cache, 2, 700)
    batch.capture_frames(5000, IDLE)
    assert batch.cache.slots == 1024


@pytest.mark.parametrize(("most", "memory", "slots"), [(None, 9999, 2048), (1200, 9999, 1536), (None, 1536, 1536)])
def test_a_cache_doubles_up_to_the_positions_and_the_memory(
    batch: RandomNumbers, most: int | None, memory: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow, batch = batch.cache._grow, RandomNumbers(batch.cache, 2, most)

    def grow_within_memory(size: int) -> None:
        if size > memory:
            raise torch.OutOfMemoryError
        grow(size)

    monkeypatch.setattr(batch.cache, "_grow", grow_within_memory)
    for limit in (900, 1025):
        batch.leave(join(batch, 0, limit))
    assert batch.cache.slots == slots
    if memory == 1536:
        with pytest.raises(torch.OutOfMemoryError):
            join(batch, 0, 1600)


def test_room_is_made_for_the_longest_of_several_prompts(batch: RandomNumbers) -> None:
    prompts = [torch.zeros(30, 16), torch.zeros(500, 16)]
    RandomNumbers(batch.cache, 2, most=700).reserve(prompts, 600)
    assert batch.cache.slots == 1024, "not more than the positions of the model"
    batch.reserve(prompts, 600)
    for seed, prompt in enumerate(prompts):
        batch.join(prompt, IDLE, seed, 600)
    assert batch.cache.slots == 1536


def test_a_row_is_free_after_a_join_that_failed(batch: RandomNumbers) -> None:
    def join_and_fail(where: str) -> int:
        if where == "prompt":
            batch.join(torch.zeros(2, 15), IDLE, 0, 5)
        join(batch, 0, 5)
        raise MemoryError

    running = join(batch, 1, 50)
    for where, error in (("prompt", RuntimeError), ("after it", MemoryError)):
        with pytest.raises(error):
            batch.join_or_free(lambda where=where: join_and_fail(where))
        assert batch.cache.lengths.tolist() == [2, 0, 0, 0] and batch.cache.find_window(1) == SHORTEST_WINDOW
    assert join(batch, 2, 5) != running and batch.step().keys() == {0, 1}
