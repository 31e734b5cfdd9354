"""Tests of `overtone.recipes.language.gguf.convertible_architectures`: what llama.cpp computes otherwise is refused by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from overtone.finetune.errors import UserError
from overtone.recipes.language.gguf.convertible_architectures import CONVERTIBLE, find_convertible, find_ignored_window, find_long_factors
from tests.model_sweep.architectures import ARCHITECTURES, SHAPE

BASE = Path("/models/base")


def config(name: str, **changes: Any) -> Any:
    """The config of the model sweep's tiny model `name`."""
    values = {**SHAPE, **ARCHITECTURES[name], **changes}
    return AutoConfig.for_model(**{key: value for key, value in values.items() if value is not None})


@pytest.mark.parametrize(
    ("name", "changes", "architecture"),
    [
        ("llama", {}, "llama"),
        ("llama, linear", {}, "llama"),
        ("llama, llama3", {}, "llama"),
        ("mistral", {}, "llama"),
        ("qwen2", {}, "qwen2"),
        ("qwen3", {}, "qwen3"),
        ("phi3", {}, "phi3"),
        ("phi3, longrope", {}, "phi3"),
        ("smollm3", {"num_hidden_layers": 5, "no_rope_layers": [1, 1, 1, 0, 1]}, "smollm3"),
        ("gemma3_text", {"num_hidden_layers": 7}, "gemma3"),
    ],
)
def test_the_architectures_of_released_models_are_accepted(name: str, changes: dict[str, Any], architecture: str) -> None:
    assert find_convertible(config(name, **changes), BASE).name == architecture


def test_each_accepted_architecture_is_tried() -> None:
    assert set(CONVERTIBLE) == {"llama", "mistral", "qwen2", "qwen3", "phi3", "smollm3", "gemma3_text"}


@pytest.mark.parametrize(
    ("name", "changes", "complaint"),
    [
        ("olmo2", {}, "possible for llama, mistral, .*, gemma3_text, not for olmo2; export with --format transformers"),
        ("llama, dynamic", {}, "the config has rope_type dynamic, which llama.cpp does not compute for llama"),
        ("llama, yarn", {}, "the config has rope_type yarn, which llama.cpp does not compute for llama"),
        ("llama", {"hidden_act": "gelu"}, "the config has the activation gelu, where llama.cpp has silu"),
        ("smollm3", {}, r"the config has no_rope_layers \[1, 0\], where llama.cpp has \[1, 1\]"),
        ("gemma3_text", {"layer_types": ["full_attention"] * 2}, "the config has layer_types .*, where llama.cpp has"),
        ("gemma3_text", {"query_pre_attn_scalar": 64}, "query_pre_attn_scalar 64, where llama.cpp has head_dim 16"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping, which llama.cpp ignores"),
    ],
)
def test_what_llama_cpp_computes_otherwise_is_refused(name: str, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=f"/models/base: .*{complaint}"):
        find_convertible(config(name, **changes), BASE)


@pytest.mark.parametrize(
    ("name", "changes", "window"),
    [
        ("mistral", {}, 16),
        ("mistral", {"sliding_window": 4096}, None),
        ("qwen2", {}, None),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 32}, 32),
        ("gemma3_text", {}, None),
    ],
)
def test_an_ignored_window_is_found(name: str, changes: dict[str, Any], window: int | None) -> None:
    found = config(name, **changes)
    assert find_ignored_window(found, find_convertible(found, BASE)) == window


@pytest.mark.parametrize(("name", "context"), [("phi3, longrope", 64), ("phi3", None), ("llama, llama3", None), ("gemma3_text", None)])
def test_the_context_of_short_rotary_factors_is_found(name: str, context: int | None) -> None:
    assert find_long_factors(config(name)) == context
