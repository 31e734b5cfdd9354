"""The log of a mixture of experts says how many parameters compute a position."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, OlmoeConfig, PretrainedConfig, Qwen3MoeConfig

from overtone.recipes.language.modeling.expert_summary import describe_experts

COMMON = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "eos_token_id": 1}
MIXTURES: list[PretrainedConfig] = [
    Qwen3MoeConfig(**COMMON, num_key_value_heads=2, moe_intermediate_size=48, num_experts=8, num_experts_per_tok=2, head_dim=8),
    OlmoeConfig(**COMMON, num_experts=8, num_experts_per_tok=2),
    MixtralConfig(**COMMON, num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2),
]


def build(config: PretrainedConfig) -> torch.nn.Module:
    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config)
    return model


@pytest.mark.parametrize("config", MIXTURES, ids=lambda config: config.model_type)
def test_active_parameters_are_those_outside_experts_and_of_the_chosen_ones(config: PretrainedConfig) -> None:
    model = build(config)
    active = describe_experts(model, config.get_text_config())
    each = 3 * 32 * 48  # gate, up and down projection
    total = sum(parameter.numel() for parameter in model.parameters())
    assert active == f"experts: 2 of 8 compute a position, so {total - 2 * 6 * each:,} of {total:,} parameters are active"


def test_a_dense_model_has_no_such_line() -> None:
    dense = LlamaConfig(**COMMON, num_key_value_heads=2)
    assert describe_experts(build(dense), dense) is None
