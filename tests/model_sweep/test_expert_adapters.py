"""The experts of each architecture compute with adapters as with those of peft, however their class uses its parameters."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from overtone.finetune.config import Lora
from overtone.finetune.modeling import expert_adapters, lora_adapters
from tests.model_sweep.architectures import ARCHITECTURES, SHAPE

LORA = Lora(rank=3, alpha=5)
IDS = torch.arange(2, 28).view(2, 13)
WITH_EXPERTS = ("llama4_text", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "gpt_oss", "deepseek_v3", "qwen3_next")


def build(name: str) -> Any:
    given = {"vocab_size": 96, "eos_token_id": 0, "pad_token_id": 1, "bos_token_id": 1, **SHAPE, **ARCHITECTURES[name]}
    kept = {key: value for key, value in given.items() if value is not None and key != "model_type"}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(given["model_type"], **kept)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.1)
    return model


def compute(model: Any) -> Tensor:
    logits: Tensor = model(IDS, use_cache=False).logits
    return logits


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_logits_and_gradients_are_those_of_peft(name: str) -> None:
    from peft import inject_adapter_in_model

    model = build(name)
    if not (names := list(expert_adapters.find_experts(model))):
        pytest.skip("its experts are layers in this version of transformers")
    stock, plain = copy.deepcopy(model), compute(model)
    config = stock.__dict__.pop("config")  # by which peft would rename the targets
    inject_adapter_in_model(lora_adapters.peft_config(LORA, [], names), stock)
    stock.config = config
    expert_adapters.inject(model, LORA, names)
    own, held = dict(model.named_parameters()), dict(stock.named_parameters())
    places = expert_adapters.name_in_peft(expert_adapters.list_adapted(model))

    def pairs(values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Of `values` by the names of the model's adapters, each in the layout of peft by its name in the stock model."""
        return {
            place.removeprefix("base_model.model.").replace(".weight", ".default.weight"): expert_adapters.read_for_peft(
                lambda inner, slices: values[inner][slices or ...], inner, each, values[inner].shape, None
            )
            for place, (inner, each) in places.items()
        }

    with torch.no_grad():
        for key, parameter in own.items():
            if lora_adapters.is_adapter(key):
                parameter.normal_(std=0.3)
        for key, value in pairs({key: value.detach() for key, value in own.items()}).items():
            held[key].copy_(value)
    found, expected = compute(model), compute(stock)
    assert torch.allclose(found, expected, atol=1e-4) and not torch.allclose(found, plain, atol=0.5)
    for logits in (found, expected):
        logits.square().mean().backward()
    gradients = pairs({key: value.grad for key, value in own.items() if value.grad is not None})
    assert len(gradients) == 2 * len(names)
    for key, gradient in gradients.items():
        reference = held[key].grad
        assert reference is not None and reference.norm() > 0 and (gradient - reference).norm() <= 1e-4 * reference.norm()
