"""Tests of `recipes.transformers_weight_names`: names of parameters and buffers in files."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageClassification

from recipes import transformers_meta_models
from recipes.image_classification import tiny_checkpoint
from recipes.transformers_weight_names import find_base_names, find_file_names, read_buffers
from tests.recipes.test_transformers_meta_models import KIND, build_resnet


def test_names_are_those_of_the_files_with_or_without_a_prefix(tmp_path: Path) -> None:
    base = tiny_checkpoint.build(tmp_path / "base")
    config = transformers_meta_models.read_config(base, KIND)
    whole = transformers_meta_models.build_on_meta(lambda: AutoModelForImageClassification.from_config(config), base)
    in_files = find_file_names(whole)
    assert "vit.encoder.layer.0.attention.attention.query.weight" in in_files.values(), "as in files of every version"
    in_base = find_base_names(in_files, whole, base)
    stored = load_file(base / "model.safetensors").keys()
    assert {in_base[name] for name in in_files.values() if not name.startswith("classifier.")} == stored
    assert find_base_names(in_files, whole, tmp_path) == {name: name for name in in_files.values()}


def test_saved_buffers_have_the_values_of_the_base(tmp_path: Path) -> None:
    model = build_resnet()
    names = find_file_names(model)
    buffers = {name: value + 1 for name, value in model.named_buffers() if name.endswith("running_mean")}
    assert len(buffers) > 3 and read_buffers(model, names, tmp_path) == {}, "a base without weights"
    save_file({names[name]: value for name, value in buffers.items()}, tmp_path / "model.safetensors")
    found = read_buffers(model, names, tmp_path)
    assert found.keys() == buffers.keys() and all(torch.equal(found[name], value) for name, value in buffers.items())
