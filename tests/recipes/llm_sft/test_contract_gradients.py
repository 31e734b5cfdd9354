"""Tests that packed gradients equal those of single samples with every attention, and that the comparison detects a leak."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen3Config

from finetune.recipe import Batch, Sample
from recipes.language import varlen_attention
from recipes.language.causal_model import CausalModel
from recipes.language.collation import collate, pack

WORDS, LENGTHS = 101, (17, 5, 30, 2, 11)
SHAPE = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
FAMILIES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=True),
}


ATTENTIONS = ["sdpa", "eager", varlen_attention.LOOP]


def model_of(family: str, attention: str) -> Any:
    varlen_attention.register()
    torch.manual_seed(2)
    return CausalModel(AutoModelForCausalLM.from_config(FAMILIES[family], attn_implementation=attention))


def batches() -> tuple[Batch, list[Batch]]:
    """The same samples packed and one by one; two thirds of their tokens are supervised."""
    rows = samples()
    return pack(rows), [collate([row]) for row in rows]


def side_by_side() -> Batch:
    return collate(samples())


def samples() -> list[Sample]:
    chance = torch.Generator().manual_seed(5)
    ids = [torch.randint(WORDS, (length,), generator=chance) for length in LENGTHS]
    return [{"ids": row, "supervised": torch.rand(len(row), generator=chance) < 0.67} for row in ids]


def gradients(model: Any, parts: list[Batch]) -> dict[str, Tensor]:
    """Gradients of the mean over all targets of all parts."""
    model.zero_grad()
    count = sum(part.targets["nll"] for part in parts)
    for part in parts:
        (model(part.tensors, part.lengths)[0] / count).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def largest_difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest of all parameters: norm of the difference divided by the norm of the expected gradient."""
    assert set(found) == set(expected) and len(found) > 15
    return max(float((found[name] - expected[name]).norm() / expected[name].norm()) for name in found)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_gradients_equal_those_of_single_samples(family: str, attention: str) -> None:
    model = model_of(family, attention)
    packed, alone = batches()
    assert packed.targets["nll"] == sum(part.targets["nll"] for part in alone) > 30
    assert largest_difference(gradients(model, [packed]), gradients(model, alone)) <= 1e-5


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_comparison_detects_samples_that_attend_to_each_other(attention: str) -> None:
    model = model_of("qwen3", attention)
    packed, alone = batches()
    whole = sum(LENGTHS)
    counting_on = {**packed.tensors, "positions": torch.arange(whole)[None], "bounds": torch.tensor([0, whole], dtype=torch.int32)}
    assert largest_difference(gradients(model, [Batch(counting_on, packed.targets, (whole,))]), gradients(model, alone)) > 1e-2
