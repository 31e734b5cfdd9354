"""Tests that packed gradients equal those of single samples with every attention, and that the comparison detects a leak."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

from overtone.finetune.recipe import Batch
from overtone.recipes.language.modeling import varlen_attention
from tests.recipes.language.tiny_models import LENGTHS, SHAPE, compute_gradients, largest_difference, make_batches, make_model

FAMILIES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=True),
}
ATTENTIONS = ["sdpa", "eager", varlen_attention.LOOP]


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_gradients_equal_those_of_single_samples(family: str, attention: str) -> None:
    model = make_model(FAMILIES[family], attention)
    packed, alone = make_batches()
    assert packed.targets["nll"] == sum(batch.targets["nll"] for batch in alone) > 30
    assert largest_difference(compute_gradients(model, [packed]), compute_gradients(model, alone)) <= 1e-5


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_comparison_detects_samples_that_attend_to_each_other(attention: str) -> None:
    model = make_model(FAMILIES["qwen3"], attention)
    packed, alone = make_batches()
    whole = sum(LENGTHS)
    as_one = {**packed.tensors, "positions": torch.arange(whole)[None], "bounds": torch.tensor([0, whole], dtype=torch.int32)}
    leaking = Batch(as_one, packed.targets, (whole,))
    assert largest_difference(compute_gradients(model, [leaking]), compute_gradients(model, alone)) > 1e-2
