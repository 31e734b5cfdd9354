"""`overtone.recipes.speech.decoding.ragged_kv_cache`: the bits of a row do not depend on the other rows, on its number, or on the
window."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from overtone.recipes.speech.decoding.cached_decoder_layers import CachedDecoderLayers
from overtone.recipes.speech.decoding.ragged_kv_cache import ROWS_MULTIPLE, SHORTEST_WINDOW, WINDOW, RowCache, count_rows, round_window

torch.set_num_threads(1)
WIDTH = 64


def make_layers(head: int) -> CachedDecoderLayers:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head,
    )
    return CachedDecoderLayers(LlamaModel(config).eval().requires_grad_(False), "Llama")


@pytest.fixture(scope="module")
def layers() -> CachedDecoderLayers:
    return make_layers(16)


def test_the_listed_windows_are_those_that_rows_get(layers: CachedDecoderLayers) -> None:
    cache = RowCache(layers, 4)
    cache.reserve(WINDOW + 1)
    found = {min(cache.slots, round_window(slots, SHORTEST_WINDOW)) for slots in range(1, cache.slots + 1)}
    assert cache.list_windows() == sorted(found) == [64, 128, 256, 512, 1024]


@torch.inference_mode()
def run_row(layers: CachedDecoderLayers, row: int, others: int, steps: int = 4, own: int = 9) -> tuple[Tensor, int]:
    """The states of one request, in this row, beside requests of so many positions; and the size of its last window."""
    cache, given = RowCache(layers, 8), torch.Generator().manual_seed(5)
    prompt, inputs = torch.randn(own, WIDTH, generator=given), torch.randn(steps, WIDTH, generator=given)
    cache.reserve(own + steps)
    states = []
    if others:
        cache.reserve(others + steps)
        noise = torch.Generator().manual_seed(others)
        for other in set(range(8)) - {row}:
            cache.read_prompt(other, torch.randn(others - other, WIDTH, generator=noise))
    states.append(cache.read_prompt(row, prompt)[-1])
    for one in inputs:
        x = torch.randn(8, 1, WIDTH)
        x[row, 0] = one
        size = cache.find_window(1)
        (window,) = cache.make_windows(1, size)
        states.append(layers(x, cache.store, window)[row, -1].clone())
        cache.lengths.add_(1)
        cache.advance([True] * 8, 1)
    return torch.stack(states), size


def test_the_bits_of_a_row_do_not_depend_on_the_others(layers: CachedDecoderLayers) -> None:
    alone, size = run_row(layers, 0, 0)
    assert size == SHORTEST_WINDOW
    for row, others, window in ((0, 40, 64), (3, 100, 128), (6, 130, 256), (7, 300, WINDOW), (5, WINDOW + 200, 2 * WINDOW)):
        found, size = run_row(layers, row, others)
        assert torch.equal(found, alone) and size == window, (row, others)


@pytest.mark.parametrize("head", [16, 64, 128])
def test_the_bits_of_a_longer_row_do_not_depend_on_the_window(head: int) -> None:
    layers = make_layers(head)
    alone, size = run_row(layers, 2, 0, own=100)
    assert size == 128
    for row, others, window in ((0, 140, 256), (7, 300, WINDOW), (5, WINDOW + 200, 2 * WINDOW)):
        found, size = run_row(layers, row, others, own=100)
        assert torch.equal(found, alone) and size == window, (row, others)


@torch.inference_mode()
def test_states_are_those_of_the_model_without_a_cache(layers: CachedDecoderLayers) -> None:
    given = torch.Generator().manual_seed(5)
    prompt, inputs = torch.randn(9, WIDTH, generator=given), torch.randn(4, WIDTH, generator=given)
    cache = RowCache(layers, 4)
    cache.reserve(13)
    whole = cache.read_prompt(0, torch.cat([prompt, inputs]))
    torch.testing.assert_close(run_row(layers, 2, 40)[0], whole[8:], rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_a_row_does_not_read_what_the_request_before_it_left(layers: CachedDecoderLayers) -> None:
    cache = RowCache(layers, 4)
    cache.reserve(10)
    cache.read_prompt(1, torch.full((10, WIDTH), torch.nan))
    cache.clear(1)
    cache.read_prompt(1, torch.ones(3, WIDTH))
    (window,) = cache.make_windows(1, cache.find_window(1))
    assert layers(torch.ones(4, 1, WIDTH), cache.store, window)[1].isfinite().all()


@torch.inference_mode()
def test_a_cache_that_grows_keeps_its_contents(layers: CachedDecoderLayers) -> None:
    cache = RowCache(layers, 4)
    cache.reserve(10)
    cache.read_prompt(2, torch.ones(10, WIDTH))
    before = [part[:, :, :10].clone() for pair in cache.store for part in pair]
    cache.reserve(WINDOW + 1)
    assert cache.slots == 2 * WINDOW and cache.find_window(1) == SHORTEST_WINDOW
    after = [part for pair in cache.store for part in pair]
    assert all(torch.equal(new[:, :, :10], old) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("slots", "shortest", "window"),
    [(1, 64, 64), (64, 64, 64), (65, 64, 128), (257, 64, 512), (512, 64, 512), (513, 64, 1024), (1025, 64, 1536), (1, 512, 512)],
)
def test_the_window_doubles_up_to_one_block_and_then_grows_by_blocks(slots: int, shortest: int, window: int) -> None:
    assert round_window(slots, shortest) == window


@pytest.mark.parametrize(("requested", "rows"), [(1, 1), (2, 4), (4, 4), (5, 8), (8, 8), (9, 12)])
def test_the_number_of_rows_is_one_or_a_multiple(requested: int, rows: int) -> None:
    assert count_rows(requested) == rows and (rows == 1 or rows % ROWS_MULTIPLE == 0)
