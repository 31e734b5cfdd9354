"""Tests of `overtone.recipes.transformers_meta_models`: configs, construction, blocks, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageClassification

from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_security import Kind
from overtone.recipes import transformers_meta_models
from overtone.recipes.image_classification.model import tiny_checkpoint

KIND = Kind("an image classifier", frozenset({"vit", "resnet"}))
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "layer_type": "basic"}


def build_resnet() -> nn.Module:
    model: nn.Module = AutoModelForImageClassification.from_config(AutoConfig.for_model("resnet", **RESNET))
    return model


def test_blocks_are_the_listed_classes_or_those_in_stacks() -> None:
    model = build_resnet()
    (listed,) = transformers_meta_models.find_blocks(model)
    assert listed.__name__ in ("ResNetConvLayer",)
    model._no_split_modules = []  # type: ignore[assignment]
    assert {kind.__name__ for kind in transformers_meta_models.find_blocks(model)} >= {"ResNetStage", "ResNetBasicLayer"}


def test_parameters_are_on_the_meta_device_and_buffers_are_real(tmp_path: Path) -> None:
    base = tiny_checkpoint.build(tmp_path / "base")
    config = transformers_meta_models.read_config(base, KIND)
    whole = transformers_meta_models.build_on_meta(lambda: AutoModelForImageClassification.from_config(config), base)
    assert all(parameter.is_meta for parameter in whole.parameters()) and not any(buffer.is_meta for buffer in whole.buffers())


def test_experts_larger_than_the_memory_are_never_allocated(tmp_path: Path) -> None:
    def make() -> nn.Module:
        layer = nn.Linear(2, 2)
        layer.experts = nn.Parameter(torch.empty(2**10, 2**12, 2**13))
        layer.register_buffer("table", torch.empty((2**10,)))
        return layer

    whole = transformers_meta_models.build_on_meta(make, tmp_path)
    assert whole.experts.is_meta and whole.experts.numel() == 2**35 and not whole.table.is_meta


def test_configs_that_cannot_be_used_are_explained(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit", "num_attention_heads": 0}))
    with pytest.raises(UserError, match=r"config.json cannot be built \(ZeroDivisionError.*; download"):
        config = transformers_meta_models.read_config(tmp_path, KIND)
        transformers_meta_models.build_on_meta(lambda: AutoModelForImageClassification.from_config(config), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(UserError, match="model_type 'qwen3' is not an image classifier"):
        transformers_meta_models.read_config(tmp_path, KIND)


def test_an_export_that_cannot_be_loaded_is_named() -> None:
    message = r"--model exports/me: cannot be loaded \(a shape\); export it again"
    with pytest.raises(UserError, match=message), transformers_meta_models.explain_loading(Path("exports/me")):
        raise RuntimeError("a shape")


def test_a_config_contains_the_types_of_its_parts() -> None:
    assert transformers_meta_models.is_part("clip", "clip_vision_model") and not transformers_meta_models.is_part(
        "vit", "clip_vision_model"
    )
