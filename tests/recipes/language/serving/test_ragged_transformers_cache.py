"""A row does not depend on the others, and its tokens are transformers' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from overtone.recipes.language.serving.ragged_transformers_cache import StockRowCache
from overtone.recipes.speech.decoding.ragged_kv_cache import SHORTEST_WINDOW, WINDOW
from tests.recipes.language.tiny_models import SHAPE, VOCABULARY

LONG: dict[str, Any] = {**SHAPE, "max_position_embeddings": 2048}
FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "qwen2, two kinds of layers": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "mistral, all layers sliding": ("MistralConfig", {"sliding_window": 6}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}),
    "phi3": ("Phi3Config", {"sliding_window": 6, "pad_token_id": 0}),
    "gpt2, learned positions": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 2048}),
}


def make_model(name: str, **further: Any) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    kind, own = FAMILIES[name]
    return transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**{**LONG, **own, **further})).eval()


def make_ids(seed: int, count: int) -> Tensor:
    return torch.randint(1, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def run_row(model: Any, row: int, others: int, steps: int = 4) -> tuple[Tensor, int]:
    """The scores of one request, in this row, beside requests of so many positions; and the size of its last window."""
    cache = StockRowCache(model, 8)
    cache.reserve(max(9, others) + steps)
    for other in set(range(8)) - {row} if others else ():
        cache.read_prompt(other, make_ids(other, others - other))
    scores = [cache.read_prompt(row, make_ids(50, 9))[0]]
    for number in range(steps):
        tokens = make_ids(100 + others + number, 8)
        tokens[row] = number + 1
        size = cache.find_window(1)
        scores.append(cache.read_tokens(tokens, size)[row].clone())
        cache.lengths.add_(1)
        cache.advance([True] * 8, 1)
    return torch.stack(scores), size


@pytest.mark.parametrize("name", ["llama", "qwen2, two kinds of layers"])
def test_the_bits_of_a_row_do_not_depend_on_the_others(name: str) -> None:
    model = make_model(name)
    alone, size = run_row(model, 0, 0)
    assert size == SHORTEST_WINDOW
    for row, others, window in ((0, 40, 64), (3, 100, 128), (6, 130, 256), (7, 300, WINDOW), (5, WINDOW + 200, 2 * WINDOW)):
        found, size = run_row(model, row, others)
        assert torch.equal(found, alone) and size == window, (row, others)


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_greedy_tokens_are_those_of_transformers_beyond_the_sliding_window(name: str) -> None:
    model, prompts, steps = make_model(name), [make_ids(1, 11), make_ids(2, 3), make_ids(3, 7)], 12
    cache, tokens = StockRowCache(model, 4), torch.zeros(4, dtype=torch.int64)
    cache.reserve(11 + steps)
    found = [list[int]() for _ in prompts]
    for row, prompt in enumerate(prompts):
        tokens[row] = cache.read_prompt(row, prompt).argmax()
    for _ in range(steps):
        for row, answer in enumerate(found):
            answer.append(int(tokens[row]))
        tokens = cache.read_tokens(tokens, cache.find_window(1)).argmax(-1)
        cache.lengths.add_(torch.tensor([1, 1, 1, 0]))
        cache.advance([True, True, True, False], 1)
    for prompt, answer in zip(prompts, found, strict=True):
        alone = model.generate(prompt[None], max_new_tokens=steps, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert answer == alone[0, len(prompt) :].tolist()


@torch.inference_mode()
def test_a_row_does_not_read_what_the_request_before_it_left() -> None:
    cache = StockRowCache(make_model("llama"), 4)
    cache.reserve(10)
    for part in (part for pair in cache._window.store for part in pair):
        part.fill_(torch.nan)
    for row in range(4):
        cache.read_prompt(row, make_ids(row, 3))
    assert cache.read_tokens(torch.ones(4, dtype=torch.int64), cache.find_window(1)).isfinite().all()


@torch.inference_mode()
def test_a_cache_that_grows_keeps_its_contents() -> None:
    cache = StockRowCache(make_model("llama"), 4)
    cache.reserve(10)
    cache.read_prompt(2, make_ids(0, 10))
    before = [part[:, :, :10].clone() for pair in cache._window.store for part in pair]
    cache.reserve(WINDOW + 1)
    assert cache.slots == 2 * WINDOW and cache.find_window(1) == SHORTEST_WINDOW
    after = [part for pair in cache._window.store for part in pair]
    assert len(after) == 4 and all(torch.equal(new[:, :, :10], old) for old, new in zip(before, after, strict=True))
