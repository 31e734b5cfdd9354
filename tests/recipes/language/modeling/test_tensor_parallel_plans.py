"""Tests that the recipe passes its plans on; tests/finetune/distributed/test_tensor_parallel.py compares them with transformers'."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from torch import nn

from overtone.finetune.config import resolve
from overtone.finetune.distributed import tensor_parallel
from overtone.recipes.language.model_loading import load_for_training
from overtone.recipes.language.modeling.tensor_parallel_plans import PLANS
from overtone.recipes.llm_sft import recipe
from overtone.recipes.llm_sft.model import tiny_checkpoint


@pytest.mark.parametrize("name", PLANS)
def test_each_plan_is_for_a_class_of_transformers(name: str) -> None:
    module, _, kind = name.rpartition(".")
    assert issubclass(getattr(importlib.import_module(module), kind), nn.Module)


def test_a_loaded_model_has_the_plans(tmp_path: Path) -> None:
    base = tiny_checkpoint.build(tmp_path / "base")
    config = resolve("llm_sft", recipe.RECIPE.Options, [], {"model.source": str(base), "data.train": str(tmp_path / "rows.jsonl")}.items())
    loaded = load_for_training(config)
    assert loaded.tensor_plans == PLANS and len(PLANS) == 2
    assert all(tensor_parallel.plan_of(block, loaded.tensor_plans) for block in tensor_parallel.blocks_of(loaded.model, loaded.blocks))
