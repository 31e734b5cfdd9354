"""8-bit AdamW: moments with blockwise dynamic quantization (blocks of 256; Dettmers et al. 2022, arXiv:2110.02861), by bitsandbytes.

Blocks never cross a row: sharding splits rows, so the state is the same on any number of ranks. A row that 256 does not divide is padded.
Moments stay in fp32 for embeddings, as in that paper's stable embedding layer and in transformers' Trainer; and for vectors and matrices
whose rows are shorter than a block, since a scale for a few values saves little. Every update is computed in fp32.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from overtone.finetune.distributed.sharding import local_shard, shard_rows_like
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.bitsandbytes_import import import_bitsandbytes

BLOCK = 256
"""Values of a row that share one scale: the block size of bitsandbytes' kernels."""
AT_ONCE = 2**24
"""Elements that one call updates. It limits the memory of padded copies and of the CPU kernel's fp32 values."""
SCALE = "_absmax"
MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW8bit(torch.optim.AdamW):
    """AdamW with 8-bit moments for the groups whose `rule` is adamw_8bit, and with fp32 moments for the others.

    A group's `params` are this rank's plain shards, filled before each step.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, lr=lr, betas=betas, fused=True)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # nothing here computes a loss again
        """One update. Frees the gradients of parameters with 8-bit moments."""
        for group in self.param_groups:
            for own in group["params"] if group["rule"] == "adamw_8bit" else ():
                if own.grad is not None:
                    self._update(group, own)
                    own.grad = None
        super().step()  # updates the parameters that still have a gradient

    def _update(self, group: dict[str, Any], own: nn.Parameter) -> None:
        state, rows, columns = self.state[own], len(own), count_columns(own)
        if not state:
            state.update(empty_state(own, 0))
        state["step"] += 1
        assert own.grad is not None
        weights, gradients = own.data.view(rows, columns), own.grad.view(rows, columns)
        once = max(1, AT_ONCE // pad_columns(columns))
        for start in range(0, rows, once):
            part = slice(start, start + once)
            moments = {name: value[part] for name, value in state.items() if name != "step"}
            update_rows(weights[part], gradients[part], moments, state["step"], group)


def update_rows(weights: Tensor, gradients: Tensor, moments: dict[str, Tensor], step: int, group: dict[str, Any]) -> None:
    """AdamW's update number `step` of rows [n, columns] and of their moments, in place."""
    from bitsandbytes.functional import optimizer_update_8bit_blockwise

    signed, unsigned = code_maps(weights.device)
    missing = pad_columns(weights.size(1)) - weights.size(1)
    filled = [functional.pad(each, (0, missing)) if missing else each for each in (gradients, weights)]
    optimizer_update_8bit_blockwise(
        "adam", *filled, moments["exp_avg"], moments["exp_avg_sq"], *group["betas"], 0.0, 0.0, group["eps"], step, group["lr"],
        signed, unsigned, moments["exp_avg" + SCALE].view(-1), moments["exp_avg_sq" + SCALE].view(-1), group["weight_decay"],
    )  # fmt: skip
    if missing:
        weights.copy_(filled[1][:, : weights.size(1)])


@cache
def code_maps(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the 256 values of a byte, fp32 [256], relative to the maximum of a block: signed for the first moment, unsigned for the
    second."""
    from bitsandbytes.functional import create_dynamic_map

    return create_dynamic_map(signed=True).to(device), create_dynamic_map(signed=False).to(device)


def can_store_in_8_bits(parameter: Tensor) -> bool:
    """Return whether the moments of a parameter, or of a shard with complete rows, are stored in 8 bits. Does not consider embeddings."""
    return parameter.dim() > 1 and count_columns(parameter) >= BLOCK


def count_columns(parameter: Tensor) -> int:
    """Return the number of elements in each row."""
    return math.prod(parameter.shape[1:])


def pad_columns(columns: int) -> int:
    """Return the number of elements of a row in whole blocks."""
    return -(-columns // BLOCK) * BLOCK


def state_bytes(parameter: Tensor) -> float:
    """Return the bytes of both moments and their scales, per element of a parameter."""
    columns = pad_columns(count_columns(parameter))
    return 2 * (columns + columns // BLOCK * 4) / count_columns(parameter)


def empty_state(part: Tensor, steps: int) -> dict[str, Tensor]:
    """Optimizer state with `steps` updates and zero moments: bytes [rows, padded columns] and fp32 scales [rows, blocks] of each."""
    rows, columns = len(part), pad_columns(count_columns(part))
    state: dict[str, Any] = {"step": steps}  # a plain number, as the kernel takes it
    for name in MOMENTS:
        state[name] = torch.zeros(rows, columns, dtype=torch.uint8, device=part.device)
        state[name + SCALE] = torch.zeros(rows, columns // BLOCK, device=part.device)
    return state


def sharded_state(whole: Tensor, state: dict[str, Any]) -> dict[str, Tensor]:
    """Return the state of this rank's shard, as tensors that are sharded like the parameter."""
    columns = pad_columns(count_columns(whole))
    widths = {name: columns // BLOCK if name.endswith(SCALE) else columns for name in state if name != "step"}
    return {name: shard_rows_like(whole, state[name], width) for name, width in widths.items()}


def check(optimizer: str) -> None:
    """Raises `UserError` if `adamw_8bit` is the optimizer and bitsandbytes is missing."""
    if optimizer == "adamw_8bit":
        import_bitsandbytes("train.optimizer: adamw_8bit")


def check_layout(name: str, parameter: Tensor) -> None:
    """Raises `UserError` if tensor parallelism cuts through blocks: their scales would depend on the number of ranks."""
    columns, own = count_columns(parameter), count_columns(local_shard(parameter))
    if own != columns and own % BLOCK:
        raise UserError(
            f"train.optimizer: adamw_8bit with parallel.tensor: a rank has {own} of the {columns} columns of {name}, which blocks of "
            f"{BLOCK} do not divide; use adamw, or another parallel.tensor"
        )
