"""Muon optimizer (Jordan et al. 2024, kellerjordan.github.io/posts/muon) for sharded matrices: orthogonalizes the momentum of each matrix.

Each matrix is orthogonalized as a whole: torch.optim.Muon under `fully_shard` would orthogonalize each rank's rows separately, and the
update would depend on the number of ranks. For each group of as many matrices as ranks, every rank gathers one, orthogonalizes it, and
returns the shards: two all-to-all exchanges, and no product is computed twice. A rank then holds one full matrix, its products, and its
shards of the others, in the compute type: less than the gathered weights of the forward pass.

The scale 0.2·√max(rows, columns) is that of Liu et al. 2025 (Muon is Scalable for LLM Training, arXiv:2502.16982): updates have the root
mean square of AdamW's, so that AdamW's learning rate and weight decay can be used.
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

from overtone.finetune.config import Model, Parallel, Train
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loading import slices_at

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan et al.'s polynomial, chosen for a steep slope at zero; singular values end between about 0.7 and 1.2."""
STEPS = 5
"""Newton-Schulz iterations."""
EPSILON = 1e-7
"""Smallest norm by which a matrix is divided."""
STATE_BYTES = 4
"""Bytes of optimizer state per element of a matrix: its momentum, in fp32."""


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
        """One update; frees the gradients of matrices. Collective: call on every rank."""
        for group in self.param_groups:
            if group["rule"] == "muon":
                self._update(group)
        super().step()  # updates the parameters that still have a gradient

    def _update(self, group: dict[str, Any]) -> None:
        """Update a group as torch.optim.Muon with `adjust_lr_fn="match_rms_adamw"` does. The results are equal to the last bit if `dtype`
        is bf16, in which torch always orthogonalizes, and each rank has whole matrices."""
        matrices = [(whole, own) for whole, own in zip(group["of"], group["params"], strict=True) if own.grad is not None]
        waiting = iter(sorted(matrices, key=lambda pair: -pair[0].numel()))  # so that those of a window take about the same time
        ranks = max((count_ranks(whole) for whole, _ in matrices), default=1)
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
    """Return the state of a matrix that was never updated, by torch.optim.Muon's name."""
    return {"momentum_buffer": torch.zeros_like(part, requires_grad=False)}


def check(train: Train, model: Model, parallel: Parallel) -> None:
    """Raises `UserError` for settings that cannot be combined with Muon, and for its momentum without it."""
    if train.optimizer != "muon":
        if train.momentum != Train.model_fields["momentum"].default:
            raise UserError(
                f"train.momentum: {train.momentum} has no effect with train.optimizer: {train.optimizer}; "
                "set train.optimizer: muon, or remove train.momentum"
            )
        return
    if model.lora is not None:
        raise UserError(
            "train.optimizer: muon with model.lora: it would orthogonalize the factors A and B, not the update B·A of the layer; "
            "use adamw or adamw_8bit, or remove model.lora"
        )
    if parallel.offload:
        raise UserError(
            "train.optimizer: muon with parallel.offload: the matrix products of its update would run on the host; "
            "use adamw or adamw_8bit, or remove parallel.offload"
        )


def check_layout(name: str, matrix: Tensor) -> None:
    """Raises `UserError` for a matrix that is not sharded over all ranks: the others would not join its exchange."""
    if isinstance(matrix, DTensor) and matrix.device_mesh.size() != dist.get_world_size():
        raise UserError(
            f"train.optimizer: muon: {name} is sharded over {matrix.device_mesh.size()} of the {dist.get_world_size()} ranks, since "
            "parallel.tensor has no plan for it; use adamw, or remove parallel.tensor"
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
    """This rank's shards of the orthogonalized matrices, from its shards `parts` of the matrices. `wholes`: their parameters, which are
    sharded in the same way; at most as many as ranks. Collective: call on every rank."""
    ranks, rank = count_ranks(wholes[0]), dist.get_rank() if dist.is_initialized() else 0
    if ranks == 1:
        return [orthogonalize(part) for part in parts]
    spreads = [find_shards(whole) for whole in wholes]
    nothing = parts[0].new_empty(0)
    to_owners = [part if spreads[owner].same_copy(rank, owner) else nothing for owner, part in enumerate(parts)]
    to_owners += [nothing] * (ranks - len(parts))
    if rank >= len(wholes):
        exchange_tensors(to_owners, [(0,)] * ranks)
        results = [nothing] * ranks
    else:
        own = spreads[rank]
        arriving = [own.shape_at(sender) if own.same_copy(sender, rank) else (0,) for sender in range(ranks)]
        matrix = parts[0].new_empty(wholes[rank].shape)
        for sender, piece in enumerate(exchange_tensors(to_owners, arriving)):
            if own.same_copy(sender, rank):
                matrix[own.slices[sender]] = piece
        result = orthogonalize(matrix)
        results = [result[slices] for slices in own.slices]
    returning = [spread.shape_at(rank) for spread in spreads] + [(0,)] * (ranks - len(spreads))
    return exchange_tensors(results, returning)[: len(wholes)]


def exchange_tensors(sent: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Send the n-th tensor to rank n; returns the tensors received from all ranks, in these shapes. Collective: call on every rank."""
    outgoing = torch.cat([tensor.reshape(-1) for tensor in sent])
    sizes = [math.prod(shape) for shape in shapes]
    incoming = outgoing.new_empty(sum(sizes))
    dist.all_to_all_single(incoming, outgoing, sizes, [tensor.numel() for tensor in sent])
    return [part.view(shape) for part, shape in zip(incoming.split(sizes), shapes, strict=True)]


@dataclass(frozen=True)
class MatrixShards:
    """Shards of a matrix, by rank."""

    slices: tuple[tuple[slice, ...], ...]
    """Slices of the full matrix."""
    copies: tuple[tuple[int, ...], ...]
    """Copy of the matrix to which a rank's shard belongs; the ranks of one copy have all of the matrix together."""

    def same_copy(self, rank: int, other: int) -> bool:
        return self.copies[rank] == self.copies[other]

    def shape_at(self, rank: int) -> tuple[int, ...]:
        return tuple(part.stop - part.start for part in self.slices[rank])


def find_shards(whole: Tensor) -> MatrixShards:
    assert isinstance(whole, DTensor)
    return _find_shards(whole.shape, whole.device_mesh, whole.placements)


@lru_cache(maxsize=4096)
def _find_shards(shape: torch.Size, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> MatrixShards:
    """Find the shards of a matrix on a mesh over all ranks, whose coordinates in row-major order are those of ranks 0, 1, 2, …"""
    coordinates = [*product(*map(range, mesh.shape))]
    copied = [axis for axis, placement in enumerate(placements) if placement.is_replicate()]
    return MatrixShards(
        tuple(slices_at(shape, mesh, placements, coordinate) for coordinate in coordinates),
        tuple(tuple(coordinate[axis] for axis in copied) for coordinate in coordinates),
    )


def count_ranks(whole: Tensor) -> int:
    """Return the number of ranks that have a shard or a copy of a parameter; 1 if it is not sharded."""
    return whole.device_mesh.size() if isinstance(whole, DTensor) else 1
