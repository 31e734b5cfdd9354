"""4-bit quantization (NF4) of frozen weights under LoRA adapters, as in QLoRA (Dettmers et al. 2023, arXiv:2305.14314), by bitsandbytes.

Blocks of 64 values never cross a row, so each rank quantizes its own rows, and sharding can split rows. Training adapts the *quantized*
weights; an export merges the adapters into the dequantized weights, so the exported model is the one that was trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from overtone.finetune.config import Model
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.bitsandbytes_import import import_bitsandbytes
from overtone.finetune.modeling.expert_adapters import list_adapted

BLOCK = 64
"""Weights that share one scale."""
PACKED, SCALES = ".packed", ".scales"


class QuantizedLinear(nn.Module):
    """A linear layer whose frozen weight [out, in] takes 4.5 bits per element."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        rows, columns, device = linear.out_features, linear.in_features, linear.weight.device
        # Stored as bytes, since sharding would cast floating-point parameters to the compute type.
        self.packed = nn.Parameter(torch.empty(rows, columns // 2, dtype=torch.uint8, device=device), requires_grad=False)
        self.scales = nn.Parameter(torch.empty(rows, columns // BLOCK * 4, dtype=torch.uint8, device=device), requires_grad=False)
        self.bias = linear.bias
        self.in_features, self.out_features = columns, rows

    def forward(self, inputs: Tensor) -> Tensor:
        """[…, in] → […, out]; the weight is dequantized to the type of the inputs temporarily, here and in the backward pass."""
        from bitsandbytes.autograd._functions import matmul_4bit

        state = _make_state(self.scales, (self.out_features, self.in_features), inputs.dtype)
        result: Tensor = matmul_4bit(inputs, self.packed.view(-1, 1).t(), state, bias=self.bias)
        return result


def quantize_base(model: nn.Module) -> None:
    """Replace the linear layer under every adapter by a quantized one, on meta. Raises `UserError` for a layer of unsuitable size, and for
    adapters of experts that are one parameter."""
    if experts := list_adapted(model):
        raise UserError(
            f"model.quantization: nf4 packs linear layers, not experts that are one parameter ({experts[0].name}, …); set "
            "model.lora.targets to a pattern that leaves them out, and they stay frozen in the compute type; or remove model.quantization"
        )
    for name, layer in model.named_modules():
        if not hasattr(layer, "base_layer"):
            continue
        if layer.base_layer.in_features % BLOCK:
            raise UserError(
                f"model.quantization: {name} has {layer.base_layer.in_features} inputs, which blocks of {BLOCK} do not divide; "
                "exclude it with model.lora.targets, or remove model.quantization"
            )
        layer.base_layer = QuantizedLinear(layer.base_layer)


def check(model: Model) -> None:
    """Raises `UserError` for settings that cannot be combined with quantization."""
    if model.quantization is None:
        return
    if model.lora is None:
        raise UserError("model.quantization: nf4 freezes the weights, so adapters are needed: set model.lora too")
    if model.lora.dora:
        raise UserError("model.quantization: nf4 with model.lora.dora: DoRA needs the unquantized weights; remove one of the two")
    if torch.__version__ < "2.12":  # torch.__version__ compares as a version
        raise UserError(
            f"model.quantization: nf4 needs torch 2.12 or newer; fully_shard of torch {torch.__version__} cannot shard quantized weights "
            "(pytorch#177844); install a newer torch, or remove model.quantization and use model.lora only"
        )
    import_bitsandbytes("model.quantization: nf4")


def weight_of(name: str) -> str | None:
    """Return the name of the weight of a quantized parameter; None for the name of any other parameter."""
    for ending in (PACKED, SCALES):
        if name.endswith(ending):
            return name.removesuffix(ending) + ".weight"
    return None


def original_shape(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """[out, in] of the weight, from a quantized parameter's name and shape."""
    return shape[0], shape[1] * 2 if name.endswith(PACKED) else shape[1] // 4 * BLOCK


def bytes_of(name: str, rows: Tensor) -> Tensor:
    """Return the values of a quantized parameter (packed weights or scales, as bytes) for these rows [n, in] of the weight."""
    packed, scales = _quantize(rows)
    return packed if name.endswith(PACKED) else scales


def round_to_4_bits(rows: Tensor) -> Tensor:
    """Return the rows [n, in] of a weight after quantization and dequantization, fp32."""
    from bitsandbytes.functional import dequantize_4bit

    packed, scales = _quantize(rows)
    result: Tensor = dequantize_4bit(packed.view(-1, 1), _make_state(scales, tuple(rows.shape), torch.float32))
    return result


def _quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Packed pairs [n, in / 2] and the bytes of fp32 scales [n, in / 16]."""
    from bitsandbytes.functional import quantize_4bit

    packed, state = quantize_4bit(rows.float().contiguous(), blocksize=BLOCK, quant_type="nf4")
    return packed.view(len(rows), -1), state.absmax.view(torch.uint8).view(len(rows), -1)


def _make_state(scales: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    from bitsandbytes.functional import QuantState, get_4bit_type

    absmax = scales.reshape(-1).view(torch.float32)
    code = get_4bit_type("nf4", device=scales.device)
    return QuantState(absmax, torch.Size(shape), code, BLOCK, "nf4", dtype)
