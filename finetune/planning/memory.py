"""Memory estimate of one rank under each parallelism strategy, from the parameters' shapes and the layout of the shards.

Persistent: fp32 master weights, gradients and optimizer state of trained parameters; with AdamW's two moments 16 bytes per parameter,
divided by the ranks that share it (Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054; its 16-bit copies of weights and gradients are
temporary here).
Temporary: gathered parameters, and gradients that are not reduced yet. The memory of a micro-batch comes from
finetune/planning/activation_memory.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import torch
from torch import nn

from overtone.finetune.distributed import ddp_replication, sharding, tensor_parallel
from overtone.finetune.distributed.tensor_parallel import NO_PLANS, Plans
from overtone.finetune.modeling import optimizers
from overtone.finetune.planning.activation_memory import Activations

GIB = 2**30
MASTER, GRADIENT, MOMENTS = 4, 4, 8
"""Bytes per trained parameter; the last one is for AdamW, which also stores a step count of 4 bytes per tensor."""
CONTEXT = 1.0 * GIB
"""GPU memory of a process besides tensors: CUDA context, library workspaces, NCCL buffers; 0.5 to 1.5 GB are reported."""
FRAGMENTS = 0.05
"""Fragmentation of the allocator, relative to the size of all tensors; 3 to 8 % are reported."""


@dataclass(frozen=True)
class ParameterOutline:
    """Size, type and sharding of a parameter."""

    rows: int
    """Its first dimension, along which `fully_shard` shards it."""
    columns: int
    """Elements per row."""
    trained: bool
    at_rest: int
    """Bytes per element while it is sharded: 4 for a master weight, those of the compute type if frozen, 1 for packed bytes."""
    gathered: int
    """Bytes per element while it is gathered."""
    divided: int | None = None
    """Dimension (0, or 1 for any other) that tensor parallelism shards; None: replicated."""
    in_block: bool = False
    state: float = MOMENTS
    """Bytes of optimizer state per element, if it is trained."""

    @property
    def size(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered together, and whose gradients are reduced together."""

    weights: tuple[ParameterOutline, ...]


@dataclass(frozen=True)
class Outline:
    """Everything that the memory of a model's parameters depends on."""

    root: Unit
    """Parameters that are gathered for the whole step."""
    units: tuple[Unit, ...]
    """Blocks, and large layers outside them."""
    blocks: int
    hidden: int
    """Hidden size, the width of the states between blocks; 0 if blocks have no linear layers."""
    late: int = 0
    """Trained elements of the root whose gradient is computed last: embeddings."""
    with_base: bool = False
    """True if a frozen copy of the base, in the compute type, is sharded beside the model (`train.base_distance`, `Recipe.reference`)."""
    rollouts: int = 0
    """Bytes that answering prompts takes on each rank (`Recipe.rollouts`)."""

    @property
    def weights(self) -> tuple[ParameterOutline, ...]:
        return tuple(weight for unit in (self.root, *self.units) for weight in unit.weights)

    @property
    def total(self) -> int:
        return sum(weight.size for weight in self.weights if weight.at_rest != 1)

    @property
    def trained(self) -> int:
        return sum(weight.size for weight in self.weights if weight.trained)

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimizer state, over all ranks."""
        return round(sum(weight.size * weight.state for weight in self.weights if weight.trained))


@dataclass(frozen=True)
class Arrangement:
    """Parallel layout of a model over ranks."""

    strategy: sharding.Strategy
    ranks: int
    replicate: int = 1
    """Copies of the sharded model, under `hsdp`."""
    tensor: int = 1
    """Tensor-parallel ranks."""
    offload: bool = False
    """True if weights, gradients and optimizer state are in host memory."""

    @property
    def shards(self) -> int:
        """Number of ranks over which a parameter outside of blocks is sharded."""
        return {"ddp": 1, "hsdp": self.ranks // self.replicate}.get(self.strategy, self.ranks)

    @property
    def gathers_all(self) -> bool:
        """True if all parameters stay gathered during the step."""
        return self.strategy in ("ddp", "zero1", "zero2")

    @property
    def replicated(self) -> bool:
        """Same as `is_replicated` in finetune/distributed/sharding.py."""
        return self.strategy == "ddp" and not self.offload

    def __str__(self) -> str:
        copies = f", {self.replicate} copies" if self.replicate > 1 else ""
        return f"{self.strategy}{f' × tp {self.tensor}' if self.tensor > 1 else ''}{copies}{', offloaded' if self.offload else ''}"


@dataclass(frozen=True)
class Memory:
    """Peak memory in a step, of the rank with the most, in bytes, term by term."""

    frozen: int
    """Shards of frozen parameters."""
    rollouts: int
    """The copy of the weights that answers prompts between two steps, and its keys and values."""
    masters: int
    gradients: int
    optimizer: int
    gathered: int
    """Parameters in the compute type that are gathered at the same time."""
    unreduced: int
    """Full gradients, before they are reduced and sharded."""
    reducing: int
    """The fp32 buffer that reduces the gradients of the largest unit."""
    activations: int
    """Activations that blocks keep for the backward pass."""
    loss: int
    """Additional peak of the loss: logits or their chunks."""
    working: int
    """Additional peak of the backward pass: a recomputed block."""
    overhead: int
    """An estimate: see `CONTEXT` and `FRAGMENTS`."""

    @property
    def lasting(self) -> int:
        return self.frozen + self.rollouts + self.masters + self.gradients + self.optimizer

    @property
    def passing(self) -> int:
        return self.gathered + self.unreduced

    @property
    def allocated(self) -> int:
        """Estimate of `torch.cuda.max_memory_allocated`."""
        return self.total - self.overhead

    @property
    def total(self) -> int:
        return sum(self.terms.values())

    @property
    def terms(self) -> dict[str, int]:
        return asdict(self)


def outline_model(
    model: nn.Module,
    blocks: tuple[type[nn.Module], ...],
    dtype: torch.dtype,
    optimizer: optimizers.Rule = "adamw",
    plans: Plans = NO_PLANS,
) -> Outline:
    """Outline of a model on the meta device, after freezing, adapters and quantization, before sharding. `dtype`: compute type."""
    divided = _find_divided(model, blocks, plans)
    rules = optimizers.assign_rules(model, optimizer, blocks)
    inside = {id(parameter) for block in tensor_parallel.blocks_of(model, blocks) for parameter in block.parameters()}
    owner: dict[int, int] = {}
    modules = sharding.find_units(model, blocks)
    for number, module in enumerate(modules):
        owner |= {id(parameter): number for parameter in module.parameters()}
    members: dict[int, list[ParameterOutline]] = {number: [] for number in range(-1, len(modules))}
    for parameter in model.parameters():
        weight = _outline_parameter(parameter, dtype, divided.get(id(parameter)), id(parameter) in inside)
        if parameter in rules:
            weight = replace(weight, state=optimizers.state_bytes(parameter, rules[parameter]))
        members[owner.get(id(parameter), -1)].append(weight)
    return Outline(
        root=Unit(tuple(members[-1])),
        units=tuple(Unit(tuple(members[number])) for number in range(len(modules))),
        blocks=len(list(tensor_parallel.blocks_of(model, blocks))),
        hidden=next((m.in_features for b in tensor_parallel.blocks_of(model, blocks) for m in b.modules() if isinstance(m, nn.Linear)), 0),
        late=sum(
            module.weight.numel()
            for module in model.modules()
            if isinstance(module, nn.Embedding) and id(module.weight) not in owner and module.weight.requires_grad
            if not sharding.is_tied(module, model)  # a tied one already gets a gradient from the head
        ),
    )


def _outline_parameter(parameter: nn.Parameter, dtype: torch.dtype, divided: int | None, in_block: bool) -> ParameterOutline:
    shape = parameter.shape
    rows = shape[0] if shape else 1
    gathered = dtype.itemsize if parameter.is_floating_point() else parameter.element_size()
    at_rest = MASTER if parameter.requires_grad else gathered
    return ParameterOutline(rows, parameter.numel() // max(rows, 1), parameter.requires_grad, at_rest, gathered, divided, in_block)


def _find_divided(model: nn.Module, blocks: tuple[type[nn.Module], ...], plans: Plans) -> dict[int, int]:
    """Parameter id → dimension that tensor parallelism shards, for blocks with a plan."""
    found: dict[int, int] = {}
    for block in tensor_parallel.blocks_of(model, blocks):
        for path, cut in tensor_parallel.plan_of(block, plans).items():
            for name, parameter in block.get_submodule(path).named_parameters():
                dimension = tensor_parallel.split_dimension(name, cut, parameter.dim())
                if dimension is not None:
                    found[id(parameter)] = dimension
    return found


def shard_size(weight: ParameterOutline, arrangement: Arrangement) -> int:
    """Return the number of elements of a parameter on rank 0, which has the largest shard."""
    if not weight.in_block or arrangement.tensor == 1:
        return -(-weight.rows // arrangement.shards) * weight.columns
    part = group_shard_size(weight, arrangement.tensor)
    rows = weight.rows // arrangement.tensor if weight.divided == 0 else weight.rows
    return -(-rows // (arrangement.shards // arrangement.tensor)) * (part // max(rows, 1))


def group_shard_size(weight: ParameterOutline, tensor: int) -> int:
    """Return the number of elements of a gathered parameter on one of `tensor` tensor-parallel ranks."""
    return weight.size if weight.divided is None else weight.size // tensor


def gathered_bytes(unit: Unit, tensor: int) -> int:
    """Bytes of a unit while it is gathered."""
    return sum(group_shard_size(weight, tensor if weight.in_block else 1) * weight.gathered for weight in unit.weights)


def trained_size(unit: Unit, tensor: int) -> int:
    """Return the number of elements of a unit that get a gradient."""
    return sum(group_shard_size(weight, tensor if weight.in_block else 1) for weight in unit.weights if weight.trained)


def estimate_memory(of: Outline, arrangement: Arrangement, work: Activations, compute: int) -> Memory:
    """Return the memory of the rank with the most. `work`: memory of its micro-batch. `compute`: bytes per element of the compute type."""
    tensor, units = arrangement.tensor, of.units or (Unit(()),)
    trained = sum(shard_size(weight, arrangement) for weight in of.weights if weight.trained)
    frozen = sum(shard_size(weight, arrangement) * weight.at_rest for weight in of.weights if not weight.trained)
    state = round(sum(shard_size(weight, arrangement) * weight.state for weight in of.weights if weight.trained))
    resident = 0 if arrangement.offload else 1
    base = freeze_outline(of) if of.with_base else None
    if base is not None:
        frozen += sum(shard_size(weight, arrangement) * weight.at_rest for weight in base.weights)
    counted = {
        "frozen": resident * frozen,
        "rollouts": of.rollouts,
        "masters": resident * MASTER * trained,
        "gradients": resident * GRADIENT * trained,
        "optimizer": resident * (state + 4 * sum(weight.trained for weight in of.weights)),
        "gathered": _gathered(of, arrangement) + (0 if base is None else _gathered(base, arrangement)),
        "unreduced": _unreduced(of, arrangement, compute),
        "reducing": 0 if arrangement.replicated else GRADIENT * max(trained_size(unit, tensor) for unit in units),
        "activations": work.blocks,
        "loss": work.loss,
        "working": work.working,
    }
    return Memory(**counted, overhead=int(CONTEXT + FRAGMENTS * sum(counted.values())))


def freeze_outline(of: Outline) -> Outline:
    """Return the outline of a model's frozen copy."""

    def freeze(unit: Unit) -> Unit:
        return Unit(tuple(replace(weight, trained=False, at_rest=weight.gathered) for weight in unit.weights))

    return replace(of, root=freeze(of.root), units=tuple(map(freeze, of.units)), late=0, with_base=False)


def _gathered(of: Outline, arrangement: Arrangement) -> int:
    """Bytes of gathered parameters: under `ddp` the copies in the compute type; if all stay gathered, everything; otherwise the root, the
    largest unit, and a block that is being prefetched."""
    if arrangement.replicated:
        return sum(weight.size * weight.gathered for weight in of.weights if weight.gathered != weight.at_rest)
    each = [gathered_bytes(unit, arrangement.tensor) for unit in of.units]
    root = gathered_bytes(of.root, arrangement.tensor)
    if arrangement.gathers_all:
        return root + sum(each)
    on_its_way = max(each[: of.blocks], default=0) if arrangement.shards > arrangement.tensor else 0
    return root + max(each, default=0) + on_its_way


def _unreduced(of: Outline, arrangement: Arrangement, compute: int) -> int:
    """Bytes of full gradients: those of the current unit and the root, in the compute type; under `zero1` also all fp32 ones, which are
    reduced at the end of the step. Under `ddp` those of one bucket, or none if autograd accumulates them by itself."""
    if arrangement.replicated:
        sizes = [weight.size for weight in of.weights if weight.trained]
        in_a_bucket = min(sum(sizes), max([*sizes, ddp_replication.BUCKET // GRADIENT]))
        return 0 if arrangement.ranks == 1 and compute == MASTER else compute * in_a_bucket
    each = [trained_size(unit, arrangement.tensor) for unit in of.units]
    root = trained_size(of.root, arrangement.tensor)
    in_hand = compute * (root - of.late + max(each, default=0))
    if arrangement.strategy in ("ddp", "zero1"):
        return GRADIENT * (root + sum(each)) + (in_hand if compute != GRADIENT else 0)
    return in_hand
