"""Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): the momentum of each matrix is orthogonalized before it is applied.

A matrix is orthogonalized as a whole, however it is sharded: torch.optim.Muon under `fully_shard` orthogonalizes each rank's rows by
themselves, which is another update on each number of ranks. Of as many matrices as there are ranks, each rank gathers one, orthogonalizes
it and returns to every rank its part: two all-to-all exchanges, and no product computed twice. What a rank holds meanwhile is one whole
matrix, its products, and its parts of the others, in the compute type: less than the gathered weights that `fully_shard` held before.

The scale 0.2·√max(rows, columns) is that of Liu et al. 2025 (Muon is Scalable for LLM Training, arXiv:2502.16982): an update has the root
mean square of AdamW's, so that a learning rate and a weight decay for AdamW carry over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from finetune.config import Config
from finetune.errors import UserError
from finetune.models import slices_at

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of Jordan et al.'s polynomial, chosen for the ahead slope at zero: singular values end between about 0.7 and 1.2, not at 1."""
STEPS = 5
"""Newton-Schulz iterations."""
EPSILON = 1e-7
"""Smallest norm by which a matrix is divided."""
STATE_BYTES = 4
"""Of each element of a matrix: its momentum, in fp32."""


class Muon(torch.optim.AdamW):
    """Muon for the groups whose `rule` is muon, AdamW for the others.

    A group's `params` are this rank's plain shards, filled before each step, and its `of` the model's parameters in the same order.
    `dtype` is the type in which matrices are exchanged and multiplied.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], momentum: float, dtype: torch.dtype) -> None:
        super().__init__(groups, lr=lr, betas=betas, fused=True)
        self.momentum, self.dtype = momentum, dtype

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # nothing here computes a loss again
        """One update. Gradients of matrices are given up on the way. Collective: call on every rank."""
        for group in self.param_groups:
            if group["rule"] == "muon":
                self._update(group)
        super().step()  # of what still has a gradient

    def _update(self, group: dict[str, Any]) -> None:
        """As torch.optim.Muon with `adjust_lr_fn="match_rms_adamw"`, to the last bit where a matrix is whole on each rank."""
        matrices = [(whole, own) for whole, own in zip(group["of"], group["params"], strict=True) if own.grad is not None]
        waiting = iter(sorted(matrices, key=lambda pair: -pair[0].numel()))  # so that those of a window take about the same time
        ranks = max((ranks_of(whole) for whole, _ in matrices), default=1)
        while window := list(islice(waiting, ranks)):
            ahead = [self._advance_momentum(own) for _, own in window]
            for (whole, own), update in zip(window, orthogonalize_each([whole for whole, _ in window], ahead), strict=True):
                own.mul_(1 - group["lr"] * group["weight_decay"])
                own.add_(update, alpha=-group["lr"] * (0.2 * math.sqrt(max(whole.shape))))
                own.grad = None

    def _advance_momentum(self, own: nn.Parameter) -> Tensor:
        """Nesterov's look ahead along the momentum, of this rank's part."""
        assert own.grad is not None
        if not self.state[own]:
            self.state[own].update(empty_state(own))
        buffer = self.state[own]["momentum_buffer"].lerp_(own.grad, 1 - self.momentum)
        ahead: Tensor = own.grad.lerp(buffer, self.momentum)
        return ahead.to(self.dtype)


def empty_state(part: Tensor) -> dict[str, Tensor]:
    """Of a matrix that was never updated, by torch.optim.Muon's name."""
    return {"momentum_buffer": torch.zeros_like(part, requires_grad=False)}


def check(config: Config) -> None:
    """Refuse, with the reason, what cannot work with Muon. Raises `UserError`."""
    if config.train.optimizer != "muon":
        return
    if config.model.lora is not None:
        raise UserError(
            "train.optimizer: muon with model.lora: it would orthogonalize the factors A and B, not the update B·A of the layer; "
            "take adamw or adamw_8bit, or drop model.lora"
        )
    if config.parallel.offload:
        raise UserError(
            "train.optimizer: muon with parallel.offload: the matrix products of its update would run on the host; "
            "take adamw or adamw_8bit, or drop parallel.offload"
        )


def check_layout(name: str, matrix: Tensor) -> None:
    """Raises `UserError` for a sharded matrix of which some ranks have no part: they would not take part in its exchange."""
    if isinstance(matrix, DTensor) and matrix.device_mesh.size() != dist.get_world_size():
        raise UserError(
            f"train.optimizer: muon: {name} is sharded over {matrix.device_mesh.size()} of the {dist.get_world_size()} ranks, since "
            "parallel.tensor has no plan for it; take adamw, or drop parallel.tensor"
        )


def orthogonalize(matrix: Tensor) -> Tensor:
    """[m, n] → [m, n], about U·Vᵀ of its singular value decomposition U·S·Vᵀ, by `STEPS` Newton-Schulz iterations in its own type."""
    a, b, c = COEFFICIENTS
    tall = matrix.size(0) > matrix.size(1)
    result = matrix.mT if tall else matrix
    result = result / result.norm().clamp(min=EPSILON)
    for _ in range(STEPS):
        gram = result @ result.mT
        result = torch.addmm(result, torch.addmm(gram, gram, gram, beta=b, alpha=c), result, beta=a)
    return result.mT if tall else result


def orthogonalize_each(wholes: Sequence[Tensor], parts: Sequence[Tensor]) -> list[Tensor]:
    """This rank's parts of these matrices orthogonalized, from its `parts` before. `wholes`: parameters that are sharded as they are, at
    most as many as ranks have a part of one. Collective: call on every rank."""
    ranks, rank = ranks_of(wholes[0]), dist.get_rank() if dist.is_initialized() else 0
    if ranks == 1:
        return [orthogonalize(part) for part in parts]
    spreads = [spread_of(whole) for whole in wholes]
    nothing = parts[0].new_empty(0)
    to_owners = [part if spreads[owner].same_copy(rank, owner) else nothing for owner, part in enumerate(parts)]
    to_owners += [nothing] * (ranks - len(parts))
    if rank >= len(wholes):
        exchange(to_owners, [(0,)] * ranks)
        results = [nothing] * ranks
    else:
        own = spreads[rank]
        arriving = [own.shape_at(sender) if own.same_copy(sender, rank) else (0,) for sender in range(ranks)]
        matrix = parts[0].new_empty(wholes[rank].shape)
        for sender, piece in enumerate(exchange(to_owners, arriving)):
            if own.same_copy(sender, rank):
                matrix[own.slices[sender]] = piece
        result = orthogonalize(matrix)
        results = [result[slices] for slices in own.slices]
    returning = [spread.shape_at(rank) for spread in spreads] + [(0,)] * (ranks - len(spreads))
    return exchange(results, returning)[: len(wholes)]


def exchange(sent: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Send the n-th tensor to rank n; what each rank sent here, in these shapes. Collective: call on every rank."""
    outgoing = torch.cat([tensor.reshape(-1) for tensor in sent])
    sizes = [math.prod(shape) for shape in shapes]
    incoming = outgoing.new_empty(sum(sizes))
    dist.all_to_all_single(incoming, outgoing, sizes, [tensor.numel() for tensor in sent])
    return [part.view(shape) for part, shape in zip(incoming.split(sizes), shapes, strict=True)]


@dataclass(frozen=True)
class Spread:
    """Where the parts of a matrix are, by rank."""

    slices: tuple[tuple[slice, ...], ...]
    """Of the whole."""
    copies: tuple[tuple[int, ...], ...]
    """Which copy of the matrix a rank's part belongs to: ranks of one copy have all of it together."""

    def same_copy(self, rank: int, other: int) -> bool:
        return self.copies[rank] == self.copies[other]

    def shape_at(self, rank: int) -> tuple[int, ...]:
        return tuple(part.stop - part.start for part in self.slices[rank])


def spread_of(whole: Tensor) -> Spread:
    assert isinstance(whole, DTensor)
    return _spread(whole.shape, whole.device_mesh, whole.placements)


@lru_cache(maxsize=4096)
def _spread(shape: torch.Size, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> Spread:
    """For a mesh over all ranks, whose coordinates in their order are those of ranks 0, 1, 2, …"""
    coordinates = [*product(*map(range, mesh.shape))]
    copied = [axis for axis, placement in enumerate(placements) if placement.is_replicate()]
    return Spread(
        tuple(slices_at(shape, mesh, placements, coordinate) for coordinate in coordinates),
        tuple(tuple(coordinate[axis] for axis in copied) for coordinate in coordinates),
    )


def ranks_of(whole: Tensor) -> int:
    """Ranks that have a part of a parameter, or a copy; 1 for one that was not sharded."""
    return whole.device_mesh.size() if isinstance(whole, DTensor) else 1
