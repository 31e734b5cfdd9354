"""Sharding strategies: FSDP/ZeRO by torch's `fully_shard`, DDP by finetune/distributed/ddp_replication.py; also gradient norm and clipping.

Under all strategies parameters and gradients are DTensors between steps, so training loop, clipping and checkpoints are the same code, also
on gloo/CPU and NCCL/GPU. (accelerate's own FSDP path falls back to DDP, or to independent processes, on a CPU.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor, Placement
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.utils.hooks import RemovableHandle

from overtone.finetune.config import Parallel, Train
from overtone.finetune.distributed import activation_checkpointing, tensor_parallel
from overtone.finetune.distributed.ddp_replication import Replica
from overtone.finetune.distributed.process_group import World, sum_over_ranks
from overtone.finetune.distributed.tensor_parallel import NO_PLANS, Plans
from overtone.finetune.errors import UserError

Strategy = Literal["ddp", "zero1", "zero2", "fsdp", "hsdp"]
WRAPPED = "_checkpoint_wrapped_module."
FILLS_UNUSED = hasattr(FSDPModule, "set_reduce_scatter_unused_params")
"""True if this torch (2.13 or newer) can reduce zeros for parameters that a backward pass did not reach."""


def choose_strategy(parallel: Parallel, train: Train, environ: Mapping[str, str]) -> Strategy:
    """The strategy, from config and launch file. Raises `UserError` if they contradict each other."""
    check_launch_file(parallel, train, environ)
    preset: Strategy = "fsdp" if environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" else "ddp"
    configured = parallel.strategy
    if configured == "auto":
        return preset
    if preset == "fsdp" and configured == "ddp":
        raise UserError(
            f"parallel.strategy is {configured}, but the launch file sets FSDP (distributed_type: FSDP); "
            "use configs/ddp.yaml or remove parallel.strategy"
        )
    return configured


def check_launch_file(parallel: Parallel, train: Train, environ: Mapping[str, str]) -> None:
    """Raises `UserError` if the launch file contradicts the config, which determines precision, accumulation and offloading."""
    precision = environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", train.precision):
        raise UserError(
            f"the launch file sets mixed_precision: {precision}, the config train.precision: {train.precision}; "
            "set mixed_precision: 'no' in the launch file (the config determines the precision)"
        )
    accumulation = environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if accumulation not in ("1", ""):
        raise UserError(
            f"the launch file sets gradient_accumulation_steps: {accumulation}; remove it, since accumulation follows from "
            f"train.global_batch_tokens: {train.global_batch_tokens} and train.micro_tokens: {train.micro_tokens}"
        )
    if environ.get("FSDP_OFFLOAD_PARAMS", "false").lower() == "true" and not parallel.offload:
        raise UserError("the launch file sets fsdp_offload_params, the config does not; set it to false, or parallel.offload: true")


def check_plan(strategy: Strategy, parallel: Parallel, train: Train, world: World) -> None:
    """Raises `UserError` for parallel settings that cannot be combined."""
    if parallel.replicate > 1 and strategy != "hsdp":
        raise UserError(f"parallel.replicate: {parallel.replicate} needs parallel.strategy: hsdp, which keeps copies of a sharded model")
    if strategy == "hsdp" and (parallel.replicate == 1 or world.size % parallel.replicate):
        raise UserError(
            f"parallel.strategy: hsdp on {world.size} ranks with parallel.replicate: {parallel.replicate}; "
            f"give a number above 1 that divides {world.size}, usually the number of machines (one copy is parallel.strategy: fsdp)"
        )
    if parallel.offload and world.device.type == "cpu":
        raise UserError("parallel.offload: true on a CPU: the weights are in host memory already; remove it")
    if parallel.tensor > 1 and strategy != "fsdp":
        raise UserError(
            f"parallel.tensor: {parallel.tensor} with parallel.strategy: {strategy}: tensor parallelism works only with fsdp; "
            "set parallel.strategy: fsdp"
        )
    if parallel.tensor > 1 and train.compile is True:
        raise UserError(
            f"parallel.tensor: {parallel.tensor} with train.compile: torch.compile fails with tensor parallelism; remove one of the two"
        )
    if world.size % parallel.tensor:
        raise UserError(f"parallel.tensor: {parallel.tensor} does not divide the number of ranks, {world.size}; use a divisor")


@dataclass(frozen=True)
class Layout:
    """Device meshes over which the parts of a model are sharded."""

    whole: DeviceMesh
    """All ranks, for everything outside of blocks."""
    blocks: DeviceMesh
    """Ranks with different data; same as `whole` without tensor parallelism."""
    shared: DeviceMesh | None = None
    """Axes `shard` (same as `blocks`) and `tensor`, for the matrices of blocks under tensor parallelism."""


def shard(
    model: nn.Module,
    blocks: tuple[type[nn.Module], ...],
    strategy: Strategy,
    parallel: Parallel,
    dtype: torch.dtype,
    world: World,
    plans: Plans = NO_PLANS,
) -> Layout:
    """Shard each unit and then the root, in place; under `ddp` replicate them. `dtype`: `compute_dtype`. Collective: call on every rank.

    Apply activation checkpointing before: a wrapper around a sharded block would bypass its all-gather hook. Compile after.
    """
    layout = make_layout(strategy, parallel, world)
    if layout.shared is not None:
        tensor_parallel.parallelize_blocks(model, blocks, layout.shared["tensor"], plans)
    if is_replicated(strategy, parallel.offload):
        model.__dict__["replica"] = Replica(model, find_units(model, blocks), layout.whole, dtype)
        return layout
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy(pin_memory=world.device.type == "cuda") if parallel.offload else OffloadPolicy()
    gathered_once = strategy in ("ddp", "zero1", "zero2")
    for module in [*find_units(model, blocks), model]:
        mesh = layout.blocks if isinstance(activation_checkpointing.block_of(module), blocks) else layout.whole
        keep = gathered_once or module is model
        fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=not keep)
    if FILLS_UNUSED:
        # fully_shard reduces the gradients of a unit as one flat tensor without names. If ranks, or under hsdp micro-batches, reached other
        # parameters, such as other experts of a loop, their gradients would be added to each other in silence.
        assert isinstance(model, FSDPModule)
        model.set_reduce_scatter_unused_params(True)
    return layout


def is_replicated(strategy: Strategy, offload: bool) -> bool:
    """Return whether finetune/distributed/ddp_replication.py is used instead of `fully_shard`.

    With offloading it is not used, because `fully_shard` moves offloaded weights to the GPU unit by unit.
    """
    return strategy == "ddp" and not offload


def replica_of(model: nn.Module) -> Replica | None:
    """The `Replica` of a model under `ddp`; None under the other strategies."""
    return model.__dict__.get("replica")


def choose_home(offload: bool, world: World) -> torch.device:
    """Device of shards, gradients and optimizer state, on which the update is computed."""
    return torch.device("cpu") if offload else world.device


def find_units(model: nn.Module, blocks: tuple[type[nn.Module], ...]) -> list[nn.Module]:
    """Modules that are gathered and freed separately: each block, and each layer outside of blocks (embedding, head) as large as a block.

    All others belong to the root, which stays gathered for the whole step: small layers, and tied ones, since a parameter cannot be in
    two units.
    """
    found = activation_checkpointing.find_outermost_blocks(model, blocks)
    adapted = [module for module in model.modules() if hasattr(module, "base_layer")]  # DoRA reads that layer's weight without calling it
    inside = {id(module) for whole in (*found, *adapted) for module in whole.modules()}
    smallest = max((_size(block) for block in found), default=0)
    layers = [module for module in model.modules() if id(module) not in inside and not any(module.children())]
    called = [layer for layer in layers if type(layer).forward is not nn.Module.forward]  # hooks cannot gather a list of parameters
    own = [layer for layer in called if _size(layer) >= smallest and not is_tied(layer, model)]
    return [*found, *(layer for layer in own if layer is not model)]


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def is_tied(layer: nn.Module, model: nn.Module) -> bool:
    """Return whether a layer shares a parameter with another module of the model."""
    own = {id(parameter) for parameter in layer.parameters()}
    return any(id(parameter) in own for module in model.modules() if module is not layer for parameter in module._parameters.values())


def make_layout(strategy: Strategy, parallel: Parallel, world: World) -> Layout:
    """Device meshes: N shards for `zero1`, `zero2` and `fsdp`; copies of shards for `hsdp`; N copies of one shard for `ddp`.

    Tensor-parallel ranks are neighbours, since they communicate most and neighbours are on one machine. Parameters outside of the split
    matrices (except norms and biases) are still sharded over all ranks: each has the full gradient, as the group sees the same data.
    """
    device, copies, group = world.device.type, {"ddp": world.size, "hsdp": parallel.replicate}.get(strategy), parallel.tensor
    if copies is not None:
        mesh = init_device_mesh(device, (copies, world.size // copies), mesh_dim_names=("replicate", "shard"))
        return Layout(mesh, mesh)
    mesh = init_device_mesh(device, (world.size,), mesh_dim_names=("shard",))
    if group == 1:
        return Layout(mesh, mesh)
    shared = init_device_mesh(device, (world.size // group, group), mesh_dim_names=("shard", "tensor"))
    return Layout(mesh, shared["shard"], shared)


def compute_dtype(precision: str) -> torch.dtype:
    return torch.bfloat16 if precision == "bf16" else torch.float32


def check_sharding(
    model: nn.Module, blocks: tuple[type[nn.Module], ...], layout: Layout, world: World, home: torch.device, plans: Plans = NO_PLANS
) -> None:
    """Verify that the model is sharded as configured. Raises `RuntimeError`, since only a bug can cause a difference."""
    if replica_of(model) is None and not isinstance(model, FSDPModule):
        raise RuntimeError("the model is not sharded: neither fully_shard nor data_parallel was applied to the root module")
    if layout.whole.size() != world.size:
        raise RuntimeError(f"the mesh has {layout.whole.size()} ranks, the process group {world.size}")
    meshes = {id(parameter): layout.blocks for block in tensor_parallel.blocks_of(model, blocks) for parameter in block.parameters()}
    if layout.shared is not None:
        meshes |= {id(parameter): layout.shared for parameter in tensor_parallel.check_placements(model, blocks, plans)}
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor) or parameter.device_mesh != meshes.get(id(parameter), layout.whole):
            raise RuntimeError(f"{name} is not sharded over the run's mesh")
        if parameter.to_local().device.type != home.type:
            raise RuntimeError(f"{name} is kept on {parameter.to_local().device}, not on {home}")
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise RuntimeError(f"{name} is trained in {parameter.dtype}; master weights must be float32, or small updates are lost")


def prepare_backward(model: nn.Module, strategy: Strategy, last: bool) -> None:
    """Configure communication of the next backward pass; `last`: whether it is the last one of its step.

    `ddp` and `zero1` keep full gradients and reduce them once per step. `zero1` and `zero2`, like `ddp`, keep gathered weights until the
    end of the step, when they must be freed, or the update of the shards would have no effect. `hsdp` sums the gradients of its copies once
    per step.
    """
    if (replica := replica_of(model)) is not None:
        replica.last = last
        return
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(last or strategy not in ("ddp", "zero1"))
    model.set_reshard_after_backward(last or strategy not in ("zero1", "zero2"))
    if strategy == "hsdp" and FILLS_UNUSED:
        model.set_requires_all_reduce(last)


def watch_reached(model: nn.Module, reached: set[str]) -> list[RemovableHandle]:
    """Let the next backward pass add to `reached` the names of the parameters of a sharded model to which it brings a gradient: where
    `FILLS_UNUSED`, the others get zeros, which look like gradients. Call it after the forward pass, and remove the handles after
    the backward pass."""
    if not FILLS_UNUSED:
        return []

    def watch(parameter: FSDPParam) -> RemovableHandle:
        name = plain_name(str(parameter._param_fqn))
        return parameter._unsharded_param.register_hook(lambda _: reached.add(name))

    states = [module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)]
    parameters = [each for state in states for group in state._fsdp_param_groups for each in group.fsdp_params]
    return [watch(each) for each in parameters if each.sharded_param.requires_grad and hasattr(each, "_unsharded_param")]


def find_unreached(model: nn.Module, reached: set[str], world: World) -> list[str]:
    """Names of the trained parameters that got no gradient on any rank. `reached`: from `watch_reached`, on this rank. Collective: call on
    every rank."""
    trained = [(plain_name(name), parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not (isinstance(model, FSDPModule) and FILLS_UNUSED):
        return [name for name, parameter in trained if parameter.grad is None]
    counts = sum_over_ranks(world, [float(name in reached) for name, _ in trained])
    return [name for (name, _), count in zip(trained, counts, strict=True) if not count]


def reshard(model: nn.Module) -> None:
    """Free gathered parameters after a forward pass without a backward pass, which would otherwise stay in place of the shards."""
    if (replica := replica_of(model)) is not None:
        replica.release()
        return
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


TensorLayout = tuple[DeviceMesh, tuple[Placement, ...]] | None
"""Mesh and placements of a tensor; None: it is not sharded."""


def group_by_layout(tensors: Iterable[Tensor]) -> dict[TensorLayout, list[Tensor]]:
    """This rank's shards, grouped by mesh and placements."""
    groups: dict[TensorLayout, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else None, []).append(local_shard(tensor))
    return groups


def squared_norm(spread: TensorLayout, parts: list[Tensor]) -> Tensor:
    """Squared L2 norm of these tensors together, over all ranks that have shards of them, fp64. Collective: call on every rank."""
    square = torch.nn.utils.get_total_norm(parts).double().square()
    if spread is None:
        return square
    mesh, placements = spread
    for axis, placement in enumerate(placements):
        if not placement.is_replicate():  # copies must count once
            dist.all_reduce(square, group=mesh.get_group(axis))
    return square


@torch.no_grad()
def gradient_norm(gradients: dict[TensorLayout, list[Tensor]]) -> Tensor:
    """Global L2 norm of gradients from `group_by_layout`, a scalar on their device; does not synchronize. Collective: call on all ranks."""
    norm = sum((squared_norm(*group) for group in gradients.items()), torch.zeros((), dtype=torch.float64)).sqrt()
    if len(gradients) > 1:  # the order of sums may change the last bit, and replicated weights would diverge
        norm = norm.float()
        dist.broadcast(norm, src=0)
    return norm


@torch.no_grad()
def clip_gradients(gradients: dict[TensorLayout, list[Tensor]], norm: float, largest: float) -> None:
    """Scale gradients from `group_by_layout`, with the global L2 norm `norm`, down to the norm `largest` if they exceed it."""
    if not norm <= largest:  # also if it is NaN
        for parts in gradients.values():
            torch._foreach_mul_(parts, largest / norm)


def local_shard(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor, sharing memory, without autograd history."""
    # Not to_local: it records autograd history, which costs time for each parameter several times per step.
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor.detach()


def shard_like(whole: Tensor, part: Tensor) -> Tensor:
    """A DTensor sharded like `whole` from this rank's shard, sharing memory."""
    # Not DTensor.from_local: it copies offloaded tensors to the mesh's GPU, and writes to that copy would be lost.
    return DTensor(part, whole._spec, requires_grad=False) if isinstance(whole, DTensor) else part


def shard_rows_like(whole: Tensor, part: Tensor, columns: int) -> Tensor:
    """As `shard_like`, for a tensor with the rows of `whole`, but `columns` elements each, and its own type."""
    if not isinstance(whole, DTensor):
        return part
    spec = DTensorSpec(whole.device_mesh, whole.placements, TensorMeta(torch.Size((len(whole), columns)), (columns, 1), part.dtype))
    return DTensor(part, spec, requires_grad=False)


def plain_name(name: str) -> str:
    """Parameter name without the part of the activation checkpointing wrapper, as used in checkpoints and in the base."""
    return name.replace(WRAPPED, "")
