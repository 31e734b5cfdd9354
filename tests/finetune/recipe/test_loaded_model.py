"""Tests of `overtone.finetune.recipe.loaded_model`."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from overtone.finetune.recipe import Loaded


def test_by_default_all_parameters_of_the_base_are_trained_and_none_is_new() -> None:
    loaded = Loaded(nn.Linear(2, 2), None, (nn.Linear,), Path("base"))
    assert all(loaded.trainable(name) for name in ("weight", "bias")) and not loaded.added
    assert not (loaded.layouts or loaded.buffers or loaded.state.as_json() or loaded.tensor_plans) and loaded.varies is None
