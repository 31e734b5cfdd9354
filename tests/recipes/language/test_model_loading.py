"""Tests of `overtone.recipes.language.model_loading`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from overtone.finetune.errors import UserError
from overtone.recipes.language.model_loading import load_for_generation
from tests.recipes.llm_sft import tiny_runs


def test_a_folder_is_loaded_in_fp32_with_its_tokenizer(tmp_path: Path) -> None:
    base = tiny_runs.write_base(tmp_path / "base")
    model, tokenizer = load_for_generation(base)
    assert next(model.parameters()).dtype == torch.float32 and not model.training
    assert len(tokenizer) == model.config.vocab_size


def test_what_cannot_be_loaded_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a model .it has no config.json"):
        load_for_generation(tmp_path)
    base = tiny_runs.write_base(tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    save_file({**weights, "model.norm.weight": torch.ones(3)}, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="cannot be loaded"):
        load_for_generation(base)
    (base / "model.safetensors").rename(base / "pytorch_model.bin")
    with pytest.raises(UserError, match="are pickles"):
        load_for_generation(base)
