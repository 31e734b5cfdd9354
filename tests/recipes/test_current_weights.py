"""A copy of a model that takes over weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from overtone.finetune.errors import UserError
from overtone.recipes.current_weights import allocate_weights, copy_weights


def make_tied() -> nn.Module:
    with torch.device("meta"):
        model = nn.ModuleDict({"table": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["table"].weight
    model.register_buffer("steps", torch.tensor([7]))
    return model


def test_tied_weights_stay_tied_and_buffers_keep_their_values() -> None:
    model = make_tied()
    allocate_weights(model, torch.bfloat16, torch.device("cpu"))
    assert model["head"].weight is model["table"].weight and model["table"].weight.dtype == torch.bfloat16
    assert model.steps.tolist() == [7]
    copy_weights([("table.weight", torch.ones(4, 3)), ("of.training.alone", torch.zeros(9))], model, Path("base"))
    assert model["head"].weight.tolist() == [[1.0] * 3] * 4


def test_a_missing_weight_is_named() -> None:
    model = make_tied()
    allocate_weights(model, torch.float32, torch.device("cpu"))
    with pytest.raises(UserError, match=r"^base: training has no weights table.weight, which generation needs"):
        copy_weights([], model, Path("base"))
