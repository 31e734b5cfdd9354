"""The tiny ViT is the same for the same seed, and stock transformers loads it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from overtone.finetune.errors import UserError
from overtone.recipes.image_classification.model import tiny_checkpoint


def test_the_seed_determines_the_bytes(tmp_path: Path) -> None:
    made = [tiny_checkpoint.build(tmp_path / name, seed) / "model.safetensors" for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    assert made[0].read_bytes() == made[1].read_bytes() != made[2].read_bytes()
    with pytest.raises(UserError, match="exists already"):
        tiny_checkpoint.build(tmp_path / "a")


def test_stock_transformers_loads_every_weight(tmp_path: Path) -> None:
    folder = tiny_checkpoint.build(tmp_path / "a")
    model, found = AutoModel.from_pretrained(folder, output_loading_info=True, add_pooling_layer=False)
    assert not found["missing_keys"] and not found["unexpected_keys"]
    assert 0.05 < model.embeddings.patch_embeddings.projection.weight.std() < 0.12
    assert torch.equal(model.layernorm.weight, torch.ones(64))
