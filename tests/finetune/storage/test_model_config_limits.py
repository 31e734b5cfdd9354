"""Impossible values are found at the place where they are, and published configs have none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_config_limits import find_impossible_value
from overtone.finetune.storage.model_security import Kind, check_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "max_position_embeddings": 10_485_760,
    "num_labels": 2,
    "attention_dropout": 0.0,
    "classifier_dropout": None,
    "pad_token_id": -1,
    "torch_dtype": "bfloat16",
    "dtype": "torch.float32",
    "pruned_heads": {},
    "sliding_window": None,
    "layers_to_skip": [0, 1],
    "moe_intermediate_size": 0,
    "quantization_config": {"dtype": "nf4", "group_size": -1},
    "text_config": {"model_type": "llama", "vocab_size": 200_000, "torch_dtype": None},
}


def test_published_values_are_possible() -> None:
    assert find_impossible_value(LLAMA) is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_labels", 10**12, "num_labels: 1000000000000, expected 0 to 100,000"),
        ("num_labels", -1, "num_labels: -1"),
        ("vocab_size", -5, "vocab_size: -5"),
        ("hidden_size", 1e300, "hidden_size: 1e"),
        ("hidden_size", float("nan"), "hidden_size: nan"),
        ("decoder_layers", 10**7, "decoder_layers: 10000000, expected 0 to 10,000"),
        ("num_key_value_heads", -8, "num_key_value_heads: -8"),
        ("head_dim", -64, "head_dim: -64"),
        ("attention_dropout", 3, "attention_dropout: 3, expected a probability from 0 to 1"),
        ("resid_pdrop", float("nan"), "resid_pdrop: nan, expected a probability"),
        ("rms_norm_eps", "x", "rms_norm_eps: 'x', expected a number"),
        ("torch_dtype", "nonsense", "torch_dtype: 'nonsense', expected a floating-point type"),
        ("dtype", ["float32"], "dtype: .*float32.*, expected a floating-point type"),
        ("pruned_heads", {"0": [1]}, "pruned_heads: .* removed attention heads"),
    ],
)
def test_an_impossible_value_is_an_error_of_the_gate_with_its_key(key: str, value: Any, message: str, tmp_path: Path) -> None:
    nested = {**LLAMA, "text_config": {**LLAMA["text_config"], key: value}}
    for config, place in (({**LLAMA, key: value}, ""), (nested, "text_config.")):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match=f"config.json: {place}{message}.*download the model again, or give another one"):
            check_config(tmp_path, Kind("a Llama", {"llama"}))
