"""Tiny models of several families, and comparisons of their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from overtone.finetune.recipe import Batch, Sample
from overtone.recipes.language.collation import collate, pack
from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.modeling.causal_model import CausalModel

VOCABULARY, LENGTHS = 101, (17, 5, 30, 2, 11)
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
"""Arguments of a config of transformers."""


def make_model(config: PretrainedConfig, attention: str) -> Any:
    """A `CausalModel` with random weights."""
    varlen_attention.register()
    torch.manual_seed(2)
    return CausalModel(AutoModelForCausalLM.from_config(config, attn_implementation=attention))


def make_samples() -> list[Sample]:
    """Samples of `LENGTHS`; two thirds of their tokens are supervised."""
    chance = torch.Generator().manual_seed(5)
    ids = [torch.randint(VOCABULARY, (length,), generator=chance) for length in LENGTHS]
    return [{"ids": row, "supervised": torch.rand(len(row), generator=chance) < 0.67} for row in ids]


def make_batches() -> tuple[Batch, list[Batch]]:
    """The same samples packed, and one by one."""
    samples = make_samples()
    return pack(samples), [collate([sample]) for sample in samples]


def compute_gradients(model: Any, batches: list[Batch]) -> dict[str, Tensor]:
    """Gradients of the mean over all targets of all batches."""
    model.zero_grad()
    count = sum(batch.targets["nll"] for batch in batches)
    for batch in batches:
        (model(batch.tensors, batch.lengths)[0] / count).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def largest_difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest of all parameters: norm of the difference divided by the norm of the expected gradient."""
    assert set(found) == set(expected) and len(found) > 15
    return max(float((found[name] - expected[name]).norm() / expected[name].norm()) for name in found)
