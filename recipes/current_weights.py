"""A copy of a model that generates with the weights that training has now."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from overtone.finetune.errors import UserError


def allocate_weights(model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Give each parameter of a model, which may be on the meta device, memory of any content, in this type if it is a floating-point
    number. Buffers keep their values and types."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                empty = torch.empty(parameter.shape, dtype=dtype if parameter.is_floating_point() else parameter.dtype, device=device)
                made.setdefault(id(parameter), nn.Parameter(empty, requires_grad=False))
                module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)


@torch.no_grad()
def copy_weights(weights: Iterable[tuple[str, Tensor]], model: nn.Module, base: Path) -> None:
    """Copy the weights that the model has by their names; all of them are read. `base`: the model's folder, for the message. Raises
    `UserError` for a weight that is not among them."""
    own, missing = dict(model.named_parameters()), {name for name, _ in model.named_parameters()}
    for name, value in weights:
        if name in own:  # a tied weight has one name here
            own[name].copy_(value)
            missing.discard(name)
    if missing:
        raise UserError(f"{base}: training has no weights {', '.join(sorted(missing)[:3])}, which generation needs")
