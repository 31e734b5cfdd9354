"""QLoRA: the frozen weights that adapters sit on are kept in 4 bits (Dettmers et al. 2023, arXiv:2305.14314), by bitsandbytes.

NF4 with blocks of 64 that never cross a row, so that a rank's rows are quantized from the base's rows alone, and sharding splits rows.
What is trained is the update of the *rounded* weights; export merges into those, so that the exported model is the one that was trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from finetune.config import Config
from finetune.errors import UserError

BLOCK = 64
"""Weights that share one scale."""
PACKED, SCALES = ".packed", ".scales"


class QuantizedLinear(nn.Module):
    """A linear layer whose frozen weight [out, in] takes 4.5 bits each."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        rows, columns, device = linear.out_features, linear.in_features, linear.weight.device
        # Bytes, since sharding casts what is floating point to the compute type.
        self.packed = nn.Parameter(torch.empty(rows, columns // 2, dtype=torch.uint8, device=device), requires_grad=False)
        self.scales = nn.Parameter(torch.empty(rows, columns // BLOCK * 4, dtype=torch.uint8, device=device), requires_grad=False)
        self.bias = linear.bias
        self.in_features, self.out_features = columns, rows

    def forward(self, inputs: Tensor) -> Tensor:
        """[…, in] → […, out]; the weight exists in the inputs' type while it is used, here and in the backward pass."""
        from bitsandbytes.autograd._functions import matmul_4bit

        state = _state(self.scales, (self.out_features, self.in_features), inputs.dtype)
        result: Tensor = matmul_4bit(inputs, self.packed.view(-1, 1).t(), state, bias=self.bias)
        return result


def quantize_base(model: nn.Module) -> None:
    """Replace the weight under every adapter. Parameters are on meta. Raises `UserError` naming a layer that cannot be."""
    for name, layer in model.named_modules():
        if not hasattr(layer, "lora_A"):
            continue
        if layer.base_layer.in_features % BLOCK:
            raise UserError(
                f"model.quantization: {name} has {layer.base_layer.in_features} inputs, which blocks of {BLOCK} do not divide; "
                "leave it out with model.lora.targets, or drop model.quantization"
            )
        layer.base_layer = QuantizedLinear(layer.base_layer)


def check(config: Config) -> None:
    """Refuse, with the reason, what cannot work with quantization. Raises `UserError`."""
    if config.model.quantization is None:
        return
    if config.model.lora is None:
        raise UserError("model.quantization: nf4 freezes the weights, so there must be something else to train: give model.lora too")
    if config.model.lora.dora:
        raise UserError("model.quantization: nf4 with model.lora.dora: DoRA measures the base's own weights, which are not there; drop one")
    if torch.__version__ < "2.12":  # by the rules of versions, which torch gives its strings
        raise UserError(
            f"model.quantization: nf4 needs torch 2.12 or newer, and this is torch {torch.__version__}, whose fully_shard cannot shard the "
            "bytes of quantized weights (pytorch#177844); install a newer torch, or drop model.quantization and train with model.lora alone"
        )
    try:
        import bitsandbytes  # noqa: F401 - is it there?
    except ImportError as error:
        raise UserError(f"model.quantization: nf4 needs bitsandbytes: pip install 'overtone[qlora]' ({error})") from None


def weight_of(name: str) -> str | None:
    """Name of the weight that a quantized parameter was made from; None for any other parameter's name."""
    for ending in (PACKED, SCALES):
        if name.endswith(ending):
            return name.removesuffix(ending) + ".weight"
    return None


def original_shape(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """[out, in] of the weight, from a quantized parameter's name and shape."""
    return shape[0], shape[1] * 2 if name.endswith(PACKED) else shape[1] // 4 * BLOCK


def bytes_of(name: str, rows: Tensor) -> Tensor:
    """The bytes of a quantized parameter for these rows [n, in] of the weight."""
    packed, scales = _quantized(rows)
    return packed if name.endswith(PACKED) else scales


def rounded(rows: Tensor) -> Tensor:
    """fp32 values that rows [n, in] of a weight have once they are quantized."""
    from bitsandbytes.functional import dequantize_4bit

    packed, scales = _quantized(rows)
    result: Tensor = dequantize_4bit(packed.view(-1, 1), _state(scales, tuple(rows.shape), torch.float32))
    return result


def _quantized(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Packed pairs [n, in / 2] and the bytes of fp32 scales [n, in / 16]."""
    from bitsandbytes.functional import quantize_4bit

    packed, state = quantize_4bit(rows.float().contiguous(), blocksize=BLOCK, quant_type="nf4")
    return packed.view(len(rows), -1), state.absmax.view(torch.uint8).view(len(rows), -1)


def _state(scales: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    from bitsandbytes.functional import QuantState, get_4bit_type

    absmax = scales.reshape(-1).view(torch.float32)
    code = get_4bit_type("nf4", device=scales.device)
    return QuantState(absmax, torch.Size(shape), code, BLOCK, "nf4", dtype)
