"""The weights of a sharded model as its base has them: whole, with LoRA adapters merged."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from overtone.finetune.config import Lora
from overtone.finetune.distributed.sharding import plain_name
from overtone.finetune.modeling.lora_adapters import DOWN, LENGTHS, UP, is_adapter, merge_update

ADAPTED = ".base_layer."
"""Part of the names of an adapted layer's own parameters."""


@torch.no_grad()
def iterate_whole_weights(model: nn.Module, lora: Lora | None) -> Iterator[tuple[str, Tensor]]:
    """Yield the name in the base and the whole value of each parameter, between steps. An adapted weight is merged in fp32, as an export
    merges it. Requires a model without quantized weights and without adapters of experts. Collective: read all of it on every rank."""
    parameters = {plain_name(name): parameter for name, parameter in model.named_parameters()}

    def gather(name: str) -> Tensor:
        parameter = parameters[name]
        return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()

    for name in parameters:
        if is_adapter(name):
            continue
        layer = name.removesuffix(f"{ADAPTED}weight")
        if layer == name or layer + DOWN not in parameters:
            yield name.replace(ADAPTED, "."), gather(name)
            continue
        assert lora is not None  # it has adapters
        lengths = gather(layer + LENGTHS) if lora.dora else None
        yield f"{layer}.weight", merge_update(gather(name), gather(layer + DOWN), gather(layer + UP), lengths, lora)
