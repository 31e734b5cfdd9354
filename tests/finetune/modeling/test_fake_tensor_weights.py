"""Weights without storage keep shape, type, ties and what is trained."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from overtone.finetune.modeling.fake_tensor_weights import drop_storage


def test_weights_lose_their_storage_and_keep_all_else() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=True))
    model[1].weight = model[0].weight
    model[1].bias.requires_grad_(False)
    model.register_parameter("packed", nn.Parameter(torch.zeros(2, dtype=torch.uint8), requires_grad=False))
    drop_storage(model, torch.bfloat16)
    weight, bias = model[1].weight, model[1].bias
    assert all(isinstance(parameter, FakeTensor) for parameter in model.parameters())
    assert weight is model[0].weight, "a tied weight stays one"
    assert (weight.shape, weight.dtype, weight.requires_grad) == ((5, 3), torch.bfloat16, True)
    assert (bias.requires_grad, model.packed.dtype) == (False, torch.uint8)
    model(torch.tensor([1, 2])).sum().backward()
    assert isinstance(weight.grad, FakeTensor) and bias.grad is None
