"""Tests of `overtone.recipes.language.serving.batching_compatibility`: which models share a batch, and why others do not."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import transformers

from overtone.recipes.language.serving import batching_compatibility
from overtone.recipes.language.serving.batching_compatibility import find_obstacle
from tests.recipes.language.tiny_models import SHAPE, VOCABULARY

OLD: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def make_model(kind: str, settings: dict[str, Any]) -> Any:
    torch.manual_seed(1)
    return transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**settings)).eval()


@pytest.mark.parametrize("kind", ["Qwen3Config", "Olmo2Config", "SmolLM3Config", "GraniteConfig", "GPTNeoXConfig"])
def test_models_with_rotary_positions_share_a_batch(kind: str) -> None:
    assert find_obstacle(make_model(kind, {**SHAPE, "head_dim": 8, "pad_token_id": 0})) is None


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("MixtralConfig", SHAPE, "its experts compute the tokens of all requests together"),
        ("LlamaConfig", {**SHAPE, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, r"rotary positions \(dynamic\)"),
        ("FalconConfig", {**OLD, "alibi": True}, "its code takes no rows of different lengths"),
        ("BloomConfig", {**OLD, "n_layer": 2, "n_head": 4}, "its attention is eager"),
    ],
)
def test_models_whose_answers_would_depend_on_the_others_do_not(kind: str, settings: dict[str, Any], reason: str) -> None:
    found = find_obstacle(make_model(kind, settings))
    assert found is not None
    assert re.search(reason, found)


def test_a_difference_between_batch_and_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("Qwen3Config", {**SHAPE, "head_dim": 8})
    read = batching_compatibility.StockRowCache.read_tokens

    def read_other_scores(cache: Any, tokens: Any, size: int) -> Any:
        return read(cache, tokens, size).roll(1, 0)

    monkeypatch.setattr(batching_compatibility.StockRowCache, "read_tokens", read_other_scores)
    assert find_obstacle(model) == "its scores in a batch differ from those of the request alone"


def test_a_sliding_window_of_an_unknown_model_type_is_refused() -> None:
    config = transformers.MistralConfig(**SHAPE, sliding_window=6)
    config.model_type = "new"
    config._attn_implementation = "sdpa"
    assert batching_compatibility.find_config_obstacle(config) == "sliding windows of new are not supported"
