"""The log of a mixture of experts says how many parameters compute a position, and that the loss does not balance the experts."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, GptOssConfig, LlamaConfig, MixtralConfig, OlmoeConfig, PretrainedConfig, Qwen3MoeConfig

from overtone.recipes.language.modeling.expert_summary import describe_experts

COMMON = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "eos_token_id": 1}
MIXTURES: list[PretrainedConfig] = [
    Qwen3MoeConfig(**COMMON, num_key_value_heads=2, moe_intermediate_size=48, num_experts=8, num_experts_per_tok=2, head_dim=8),
    OlmoeConfig(**COMMON, num_experts=8, num_experts_per_tok=2),
    MixtralConfig(**COMMON, num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2, router_aux_loss_coef=0.02),
]


def build(config: PretrainedConfig) -> torch.nn.Module:
    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config)
    return model


@pytest.mark.parametrize("config", MIXTURES, ids=lambda config: config.model_type)
def test_active_parameters_are_those_outside_experts_and_of_the_chosen_ones(config: PretrainedConfig) -> None:
    model = build(config)
    active, balance = describe_experts(model, config.get_text_config())
    each = 3 * 32 * 48  # gate, up and down projection
    total = sum(parameter.numel() for parameter in model.parameters())
    assert active == f"experts: 2 of 8 compute a position, so {total - 2 * 6 * each:,} of {total:,} parameters are active"
    assert balance.startswith(f"router_aux_loss_coef: {config.router_aux_loss_coef:g} of config.json is not used")


def test_a_dense_model_and_one_without_a_balancing_loss_have_no_such_lines() -> None:
    dense = LlamaConfig(**COMMON, num_key_value_heads=2)
    assert describe_experts(build(dense), dense) == ()
    oss = GptOssConfig(**COMMON, num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=1, router_aux_loss_coef=0.0)
    (active,) = describe_experts(build(oss), oss)
    assert active.startswith("experts: 1 of 4 compute a position")
