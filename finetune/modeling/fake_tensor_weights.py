"""Weights without storage: torch's FakeTensors, with which a model can be traced."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


def drop_storage(model: nn.Module, dtype: torch.dtype) -> FakeTensorMode:
    """Replace parameters, in place, by fake ones without storage; floating-point ones in the compute type, as sharding casts them. Returns
    the mode in which more such tensors can be made."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, nn.Parameter] = {}  # a tied weight stays one
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in made:
                kind = dtype if parameter.is_floating_point() else parameter.dtype
                with mode:
                    empty = torch.empty(parameter.shape, dtype=kind, device="cpu")
                made[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
            if parameter is not None:
                module._parameters[name] = made[id(parameter)]
    return mode
