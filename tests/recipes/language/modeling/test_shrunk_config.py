"""Tests of `shrunk_config`: widths keep their ratios, every kind of layer stays, and thresholds are within
reach."""

from __future__ import annotations

from typing import Any

import pytest
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, MistralConfig, PretrainedConfig, Qwen3MoeConfig

from overtone.recipes.language.modeling import shrunk_config
from overtone.recipes.language.modeling.causal_model import find_block_classes, find_decoder
from overtone.recipes.language.modeling.shrunk_config import ShrunkConfig


def shrink(config: PretrainedConfig, sample: int = 4096, row: int = 4096) -> ShrunkConfig:
    """The first candidate, for a model at its real size on meta."""
    with init_empty_weights(include_buffers=False):
        whole = AutoModelForCausalLM.from_config(config)
    return next(shrunk_config.shrink(config, find_decoder(whole), find_block_classes_of(whole), sample, row))


def find_block_classes_of(whole: Any) -> Any:
    whole.decoder_path = ""
    whole.get_submodule("")._no_split_modules = find_decoder(whole)._no_split_modules
    return find_block_classes(whole)


def test_widths_are_divided_by_one_number_and_heads_keep_their_size() -> None:
    config = LlamaConfig(hidden_size=4096, intermediate_size=11008, num_attention_heads=32, num_key_value_heads=8, num_hidden_layers=32)
    found = shrink(config).config
    assert (found.hidden_size, found.num_attention_heads, found.num_key_value_heads) == (256, 2, 1)
    assert found.intermediate_size == 688 and found.num_hidden_layers == 2 and found.vocab_size == 128
    assert config.hidden_size == 4096, "the model's own config is not changed"


def test_every_kind_of_layer_stays() -> None:
    found = shrink(Gemma3TextConfig(hidden_size=512, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=26)).config
    assert found.num_hidden_layers == 6 and found.layer_types == [*["sliding_attention"] * 5, "full_attention"]


def test_experts_are_twice_as_many_as_a_position_is_routed_to() -> None:
    config = Qwen3MoeConfig(
        hidden_size=512, num_attention_heads=8, num_key_value_heads=4, num_hidden_layers=2, num_experts=128, num_experts_per_tok=8
    )
    found = shrink(config).config
    assert (found.num_experts, found.num_experts_per_tok) == (16, 8)


@pytest.mark.parametrize(
    ("window", "sample", "row", "expected"),
    [
        (4096, 8192, 8192, 16),  # samples of the run reach it
        (4096, 2048, 16384, 14),  # only rows do: it is longer than each sample
        (4096, 2048, 4096, shrunk_config.OUT_OF_REACH),  # nothing does
        (4, 4096, 4096, 4),  # low already
    ],
)
def test_a_threshold_is_lowered_as_far_as_the_run_reaches_it(window: int, sample: int, row: int, expected: int) -> None:
    config = MistralConfig(
        hidden_size=64, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=2, intermediate_size=64, sliding_window=window
    )
    found = shrink(config, sample, row)
    assert found.config.sliding_window == expected and found.config.max_position_embeddings == shrunk_config.OUT_OF_REACH
    if expected < shrunk_config.OUT_OF_REACH:
        assert sum(found.lengths) > expected
        assert any(length > expected for length in found.lengths) == (window < sample)


def test_thresholds_in_rotary_parameters_keep_their_order() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=2, num_hidden_layers=2, intermediate_size=64, max_position_embeddings=4096, rope_scaling=rope
    )
    found = shrink(config, 8192, 8192)
    assert found.config.rope_scaling["original_max_position_embeddings"] == 16 and found.config.max_position_embeddings == 28
    assert {16, 19, 28, 31} <= set(found.lengths)


def test_a_declared_quantization_is_left_out() -> None:
    config = AutoConfig.for_model("llama", hidden_size=64, num_attention_heads=2, num_hidden_layers=1, intermediate_size=64)
    config.quantization_config = {"quant_method": "fp8"}
    with init_empty_weights(include_buffers=False):
        decoder = find_decoder(AutoModelForCausalLM.from_config(LlamaConfig(hidden_size=64, num_attention_heads=2, num_hidden_layers=1)))
    assert not hasattr(next(shrunk_config.shrink(config, decoder, (), 9, 9)).config, "quantization_config")
