"""Bytes that one rank holds under each strategy: counted from the parameters' shapes and from how `parallel` lays them out.

What lasts: fp32 masters, gradients and the optimizer's state of what is trained: with AdamW's two moments 16 bytes for each parameter over
the ranks that share it (Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054, whose 16-bit copy and gradient of a mixed-precision optimizer are
fp32 here and pass).
What passes: parameters gathered for a forward, gradients that are not reduced yet. What a micro-batch needs comes from `activations`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

import torch
from torch import nn

from finetune import data_parallel, optim, parallel, tensor_parallel
from finetune.activations import Activations
from finetune.tensor_parallel import NO_PLANS, Plans

GIB = 2**30
MASTER, GRADIENT, MOMENTS = 4, 4, 8
"""Bytes of each trained parameter; the last under AdamW, which also counts its steps, in 4 bytes for each tensor."""
CONTEXT = 1.0 * GIB
"""What a process holds on a GPU besides tensors: CUDA's context, libraries' workspaces, NCCL's buffers; 0.5 to 1.5 GB are reported."""
FRAGMENTS = 0.05
"""Of all tensors, what the allocator cannot hand out because it lies in pieces; 3 to 8 % are reported."""


@dataclass(frozen=True)
class Weight:
    """A parameter."""

    rows: int
    """Its first dimension, along which `fully_shard` divides it."""
    columns: int
    """Elements in each of them."""
    trained: bool
    at_rest: int
    """Bytes an element: 4 for a master, the compute type's for what is frozen, 1 for packed bytes."""
    gathered: int
    """Bytes an element while it is used."""
    divided: int | None = None
    """Dimension (0, or 1 for any other) along which a tensor-parallel group divides it."""
    in_block: bool = False
    state: float = MOMENTS
    """Bytes an element of the optimizer's state, if it is trained."""

    @property
    def size(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered, and whose gradients are reduced, together."""

    weights: tuple[Weight, ...]


@dataclass(frozen=True)
class Outline:
    """All that the memory of a model's parameters depends on."""

    root: Unit
    """What is gathered for the whole step."""
    units: tuple[Unit, ...]
    """Blocks, and large layers outside them."""
    blocks: int
    hidden: int
    """Width of the states between blocks; 0 if there are no linear layers in them."""
    late: int = 0
    """Trained elements of the root whose gradient comes last: embeddings, which nothing before them needs."""

    @property
    def weights(self) -> tuple[Weight, ...]:
        return tuple(weight for unit in (self.root, *self.units) for weight in unit.weights)

    @property
    def total(self) -> int:
        return sum(weight.size for weight in self.weights if weight.at_rest != 1)

    @property
    def trained(self) -> int:
        return sum(weight.size for weight in self.weights if weight.trained)

    @property
    def state_bytes(self) -> int:
        """Of the optimizer's state, over all ranks."""
        return round(sum(weight.size * weight.state for weight in self.weights if weight.trained))


@dataclass(frozen=True)
class Arrangement:
    """How ranks share a model."""

    strategy: parallel.Strategy
    ranks: int
    replicate: int = 1
    """Copies of the shards, under `hsdp`."""
    tensor: int = 1
    """Neighbours that share each matrix of a block."""
    offload: bool = False
    """Whether what lasts is kept in host memory."""

    @property
    def shards(self) -> int:
        """Ranks over which a parameter outside blocks is divided."""
        return {"ddp": 1, "hsdp": self.ranks // self.replicate}.get(self.strategy, self.ranks)

    @property
    def gathers_all(self) -> bool:
        """Whether all parameters are gathered through the step."""
        return self.strategy in ("ddp", "zero1", "zero2")

    @property
    def replicated(self) -> bool:
        """As `parallel.is_replicated`."""
        return self.strategy == "ddp" and not self.offload

    def __str__(self) -> str:
        copies = f", {self.replicate} copies" if self.replicate > 1 else ""
        return f"{self.strategy}{f' × tp {self.tensor}' if self.tensor > 1 else ''}{copies}{', offloaded' if self.offload else ''}"


@dataclass(frozen=True)
class Memory:
    """Of the fullest rank at the peak of a step, in bytes, term by term."""

    frozen: int
    """Parameters that are not trained, at rest."""
    masters: int
    gradients: int
    optimizer: int
    gathered: int
    """Parameters in the compute type, as many as are gathered at once."""
    unreduced: int
    """Whole gradients, before they are reduced and divided."""
    reducing: int
    """The fp32 buffer through which the largest unit's gradients are reduced."""
    activations: int
    """What blocks keep for the backward pass."""
    loss: int
    """What the loss needs beside that: logits or their chunks."""
    working: int
    """What the backward pass needs beside that: a block computed again."""
    overhead: int
    """An allowance, not a count: see `CONTEXT` and `FRAGMENTS`."""

    @property
    def lasting(self) -> int:
        return self.frozen + self.masters + self.gradients + self.optimizer

    @property
    def passing(self) -> int:
        return self.gathered + self.unreduced

    @property
    def allocated(self) -> int:
        """What `torch.cuda.max_memory_allocated` would say."""
        return self.total - self.overhead

    @property
    def total(self) -> int:
        return sum(self.terms.values())

    @property
    def terms(self) -> dict[str, int]:
        return asdict(self)


def outline(
    model: nn.Module,
    blocks: tuple[type[nn.Module], ...],
    dtype: torch.dtype,
    optimizer: optim.Rule = "adamw",
    plans: Plans = NO_PLANS,
) -> Outline:
    """Of a model as it will be sharded: frozen, adapted and quantized, on meta. `dtype` is the compute type."""
    divided = _divided(model, blocks, plans)
    rules = optim.rules_of(model, optimizer, blocks)
    inside = {id(parameter) for block in tensor_parallel.blocks_of(model, blocks) for parameter in block.parameters()}
    owner: dict[int, int] = {}
    modules = parallel.units_of(model, blocks)
    for number, module in enumerate(modules):
        owner |= {id(parameter): number for parameter in module.parameters()}
    members: dict[int, list[Weight]] = {number: [] for number in range(-1, len(modules))}
    for parameter in model.parameters():
        weight = _weight(parameter, dtype, divided.get(id(parameter)), id(parameter) in inside)
        if parameter in rules:
            weight = replace(weight, state=optim.state_bytes(parameter, rules[parameter]))
        members[owner.get(id(parameter), -1)].append(weight)
    return Outline(
        root=Unit(tuple(members[-1])),
        units=tuple(Unit(tuple(members[number])) for number in range(len(modules))),
        blocks=len(list(tensor_parallel.blocks_of(model, blocks))),
        hidden=next((m.in_features for b in tensor_parallel.blocks_of(model, blocks) for m in b.modules() if isinstance(m, nn.Linear)), 0),
        late=sum(p.numel() for p in _embeddings(model) if id(p) not in owner and p.requires_grad),
    )


def _weight(parameter: nn.Parameter, dtype: torch.dtype, divided: int | None, in_block: bool) -> Weight:
    shape = parameter.shape
    rows = shape[0] if shape else 1
    gathered = dtype.itemsize if parameter.is_floating_point() else parameter.element_size()
    at_rest = MASTER if parameter.requires_grad else gathered
    return Weight(rows, parameter.numel() // max(rows, 1), parameter.requires_grad, at_rest, gathered, divided, in_block)


def _divided(model: nn.Module, blocks: tuple[type[nn.Module], ...], plans: Plans) -> dict[int, int]:
    """Parameter → dimension that a tensor-parallel group divides, for blocks that have a plan."""
    found: dict[int, int] = {}
    for block in tensor_parallel.blocks_of(model, blocks):
        for path, cut in tensor_parallel.plan_of(block, plans).items():
            for name, parameter in block.get_submodule(path).named_parameters():
                dimension = tensor_parallel.split_dimension(name, cut, parameter.dim())
                if dimension is not None:
                    found[id(parameter)] = dimension
    return found


def _embeddings(model: nn.Module) -> Iterable[torch.Tensor]:
    """Of those that are nothing else: a tied one has its gradient from the head already."""
    return (module.weight for module in model.modules() if isinstance(module, nn.Embedding) and not parallel.is_tied(module, model))


def share(weight: Weight, arrangement: Arrangement) -> int:
    """Elements of a parameter that the fullest rank has: the first of equal pieces of rows."""
    if not weight.in_block or arrangement.tensor == 1:
        return -(-weight.rows // arrangement.shards) * weight.columns
    part = group_share(weight, arrangement.tensor)
    rows = weight.rows // arrangement.tensor if weight.divided == 0 else weight.rows
    return -(-rows // (arrangement.shards // arrangement.tensor)) * (part // max(rows, 1))


def group_share(weight: Weight, tensor: int) -> int:
    """Elements of a parameter that a rank of a tensor-parallel group works with."""
    return weight.size if weight.divided is None else weight.size // tensor


def gathered_bytes(unit: Unit, tensor: int) -> int:
    """Of a unit while it is used."""
    return sum(group_share(weight, tensor if weight.in_block else 1) * weight.gathered for weight in unit.weights)


def trained_size(unit: Unit, tensor: int) -> int:
    """Elements of a unit that get a gradient."""
    return sum(group_share(weight, tensor if weight.in_block else 1) for weight in unit.weights if weight.trained)


def memory(of: Outline, arrangement: Arrangement, work: Activations, compute: int) -> Memory:
    """Of the fullest rank. `work` is what its micro-batch needs, `compute` the bytes of an element in the compute type."""
    tensor, units = arrangement.tensor, of.units or (Unit(()),)
    trained = sum(share(weight, arrangement) for weight in of.weights if weight.trained)
    frozen = sum(share(weight, arrangement) * weight.at_rest for weight in of.weights if not weight.trained)
    state = round(sum(share(weight, arrangement) * weight.state for weight in of.weights if weight.trained))
    resident = 0 if arrangement.offload else 1
    counted = {
        "frozen": resident * frozen,
        "masters": resident * MASTER * trained,
        "gradients": resident * GRADIENT * trained,
        "optimizer": resident * (state + 4 * sum(weight.trained for weight in of.weights)),
        "gathered": _gathered(of, arrangement),
        "unreduced": _unreduced(of, arrangement, compute),
        "reducing": 0 if arrangement.replicated else GRADIENT * max(trained_size(unit, tensor) for unit in units),
        "activations": work.blocks,
        "loss": work.loss,
        "working": work.working,
    }
    return Memory(**counted, overhead=int(CONTEXT + FRAGMENTS * sum(counted.values())))


def _gathered(of: Outline, arrangement: Arrangement) -> int:
    """Everything, but under `ddp` only what is computed with in another type than it rests in; or the root, the largest unit, and a block
    that is on its way meanwhile."""
    if arrangement.replicated:
        return sum(weight.size * weight.gathered for weight in of.weights if weight.gathered != weight.at_rest)
    each = [gathered_bytes(unit, arrangement.tensor) for unit in of.units]
    root = gathered_bytes(of.root, arrangement.tensor)
    if arrangement.gathers_all:
        return root + sum(each)
    on_its_way = max(each[: of.blocks], default=0) if arrangement.shards > arrangement.tensor else 0
    return root + max(each, default=0) + on_its_way


def _unreduced(of: Outline, arrangement: Arrangement, compute: int) -> int:
    """Of the unit in hand and the root, in the compute type; under `zero1` besides all that wait in fp32 for the step's end. Under `ddp`
    those of a bucket, but none where autograd itself adds them up."""
    if arrangement.replicated:
        sizes = [weight.size for weight in of.weights if weight.trained]
        in_a_bucket = min(sum(sizes), max([*sizes, data_parallel.BUCKET // GRADIENT]))
        return 0 if arrangement.ranks == 1 and compute == MASTER else compute * in_a_bucket
    each = [trained_size(unit, arrangement.tensor) for unit in of.units]
    root = trained_size(of.root, arrangement.tensor)
    in_hand = compute * (root - of.late + max(each, default=0))
    if arrangement.strategy in ("ddp", "zero1"):
        return GRADIENT * (root + sum(each)) + (in_hand if compute != GRADIENT else 0)
    return in_hand
