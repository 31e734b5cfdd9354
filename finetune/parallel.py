"""Sharding: every strategy is torch's `fully_shard` over a mesh, the same code on gloo/CPU and NCCL/GPU.

One mechanism means one loop, one clip and one checkpoint for all of them, and that what CI runs is what a GPU runs. (accelerate's own
FSDP path falls back to DDP, or to lone processes, on a CPU.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, apply_activation_checkpointing, checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from finetune.config import Config
from finetune.errors import UserError
from finetune.world import World

Strategy = Literal["ddp", "fsdp"]
WRAPPED = "_checkpoint_wrapped_module."


def choose_strategy(config: Config, environ: Mapping[str, str]) -> Strategy:
    """The strategy on which the recipe's config and the launch file agree; raises `UserError` naming both where they do not."""
    check_launch_file(config, environ)
    preset: Strategy = "fsdp" if environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" else "ddp"
    asked = config.parallel.strategy
    if asked == "auto":
        return preset
    if preset == "fsdp" and asked != "fsdp":
        raise UserError(
            f"parallel.strategy is {asked}, but the launch file asks for FSDP (distributed_type: FSDP); "
            "use configs/ddp.yaml or drop parallel.strategy"
        )
    return asked


def check_launch_file(config: Config, environ: Mapping[str, str]) -> None:
    """The recipe owns precision and accumulation; a launch file that says otherwise is an error, not a silent winner."""
    precision = environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", config.train.precision):
        raise UserError(
            f"the launch file says mixed_precision: {precision}, the recipe says train.precision: {config.train.precision}; "
            "set mixed_precision: 'no' in the launch file (the recipe owns precision)"
        )
    accumulation = environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if accumulation not in ("1", ""):
        raise UserError(
            f"the launch file says gradient_accumulation_steps: {accumulation}; remove it there, since accumulation follows from "
            f"train.global_batch_tokens: {config.train.global_batch_tokens} and train.micro_tokens: {config.train.micro_tokens}"
        )
    if environ.get("FSDP_OFFLOAD_PARAMS", "false").lower() == "true":
        raise UserError("the launch file asks for fsdp_offload_params, which is not supported; set it to false")


def shard(model: nn.Module, blocks: tuple[type[nn.Module], ...], strategy: Strategy, config: Config, world: World) -> DeviceMesh:
    """Wrap for activation checkpointing, then shard each block and the root, in place. Collective: call on every rank.

    The order matters: a checkpoint wrapper around a sharded block would recompute without its all-gather hook.
    """
    if config.train.activation_checkpointing == "full":
        apply_activation_checkpointing(
            model,
            checkpoint_wrapper_fn=lambda block: checkpoint_wrapper(block, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
            check_fn=lambda module: isinstance(module, blocks),
        )
    mesh = make_mesh(strategy, world)
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype(config), reduce_dtype=torch.float32)
    units = [module for module in model.modules() if isinstance(module, blocks)]
    for module in [*units, model]:
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=strategy == "fsdp" and module is not model)
    return mesh


def make_mesh(strategy: Strategy, world: World) -> DeviceMesh:
    """`fsdp`: one dimension of N shards. `ddp`: N replicas of one shard, so that gradients are averaged and nothing is split."""
    kind = world.device.type
    if strategy == "fsdp":
        return init_device_mesh(kind, (world.size,), mesh_dim_names=("shard",))
    return init_device_mesh(kind, (world.size, 1), mesh_dim_names=("replicate", "shard"))


def compute_dtype(config: Config) -> torch.dtype:
    return torch.bfloat16 if config.train.precision == "bf16" else torch.float32


def check_sharding(model: nn.Module, mesh: DeviceMesh, world: World) -> None:
    """What was asked is what is, or the run does not start. Raises `RuntimeError`, since only a defect can cause it."""
    if not isinstance(model, FSDPModule):
        raise RuntimeError("the model is not sharded: fully_shard did not take hold of the root module")
    if mesh.size() != world.size:
        raise RuntimeError(f"the mesh holds {mesh.size()} ranks, the world {world.size}")
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor) or parameter.device_mesh != mesh:
            raise RuntimeError(f"{name} is not sharded over the run's mesh")
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise RuntimeError(f"{name} is trained in {parameter.dtype}; masters must be float32, or small updates are lost")


def sync_gradients(model: nn.Module, strategy: Strategy, last: bool) -> None:
    """Before each backward. `ddp` reduces once, at the step's last micro-batch; `fsdp` each time, since whole gradients would not fit."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(last or strategy == "fsdp")


def reshard(model: nn.Module) -> None:
    """Give up gathered parameters after a forward without a backward, which would otherwise stay in the place of the shards."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def clip_gradients(parameters: Iterable[nn.Parameter], largest: float) -> float:
    """Scale gradients to the global L2 norm `largest` if they exceed it; returns the norm before. Collective: call on every rank."""
    norm = torch.nn.utils.clip_grad_norm_(list(parameters), largest)
    # A DTensor's own value is this rank's part: off by about sqrt(N) without the reduction.
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def plain_name(name: str) -> str:
    """Parameter name without the activation checkpointing wrapper's part, as it stands in checkpoints and in the base."""
    return name.replace(WRAPPED, "")
