"""Tensor parallelism: the ranks of a group share the matrices of each block (Shoeybi et al. 2019, Megatron-LM).

The first matrices of a block are split by outputs and the last ones by inputs, so that attention heads and hidden units stay on one rank
and each half of the block ends in one all-reduce over the group. Which modules are split, and how, is a plan of the recipe
(`Loaded.tensor_plans`), for each class of blocks. The rest of the model, such as embeddings, head and loss, is not split here:
`finetune/distributed/sharding.py` shards it over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel, parallelize_module

from overtone.finetune.config import Model
from overtone.finetune.errors import UserError

Cut = Literal["outputs", "inputs", "heads"]
"""Way in which the ranks of a group share a module: they split a linear layer's outputs or its inputs; or each of them has a whole norm,
and applies it to its own attention heads."""
Plan = Mapping[str, Cut]
"""Path of a module in the block → its cut. A norm that is applied to each head has to be in it: otherwise each rank keeps the gradient of
its own heads alone, and the copies of the norm drift apart without an error."""
Plans = Mapping[str, Plan]
"""Class of the block, as `module.ClassName` → plan."""
NO_PLANS: Plans = {}


def check_model(model: nn.Module, blocks: tuple[type[nn.Module], ...], size: int, chosen: Model, plans: Plans = NO_PLANS) -> None:
    """Raises `UserError`, with the reason, if `size` ranks (`parallel.tensor`) cannot share the model's blocks. `chosen`: the section
    `model` of the config."""
    if size == 1:
        return
    setting = f"parallel.tensor: {size}"
    for block in blocks_of(model, blocks):
        if not plan_of(block, plans):
            known = ", ".join(name.rpartition(".")[2] for name in plans)
            only = f", only for {known}" if known else ""
            raise UserError(f"{setting}: the recipe has no tensor-parallel plan for {type(block).__name__}{only}; drop parallel.tensor")
        check_shape(block.get_submodule("self_attn").config, size)
    lora = chosen.lora
    if chosen.quantization is not None:
        raise UserError(
            f"{setting}: model.quantization: {chosen.quantization} packs the rows that tensor parallelism splits; drop one of the two"
        )
    if lora is not None and lora.dora:
        raise UserError(f"{setting}: model.lora.dora needs the norms of whole rows, which no rank has; drop one of the two")
    if lora is not None and lora.dropout:
        raise UserError(f"{setting}: model.lora.dropout: {lora.dropout}: {MASKS_DIFFER}; set it to 0")


def check_shape(shape: Any, size: int) -> None:
    """`shape` is the model's own config. Raises `UserError` for counts that `size` does not divide, and for dropout in attention."""
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        count = getattr(shape, key)
        if count % size:
            raise UserError(f"parallel.tensor: {size} does not divide the model's {key}: {count}; use a number that does")
    if shape.attention_dropout:
        raise UserError(
            f"parallel.tensor: {size}: attention_dropout: {shape.attention_dropout}: {MASKS_DIFFER}; set it to 0 in config.json"
        )


MASKS_DIFFER = "dropout masks would differ between tensor-parallel ranks, and the result would depend on parallel.tensor"


def parallelize_blocks(model: nn.Module, blocks: tuple[type[nn.Module], ...], mesh: DeviceMesh, plans: Plans) -> None:
    """Split the blocks over the ranks of `mesh`, in place. After LoRA, and before `fully_shard`; parameters may be on meta."""
    for block in blocks_of(model, blocks):
        frozen = [name for name, parameter in block.named_parameters() if not parameter.requires_grad]
        parallelize_module(block, mesh, parallel_styles(block, plan_of(block, plans)), src_data_rank=None)
        for name in frozen:  # a norm is replaced by a new parameter, which would be trained
            block.get_parameter(name).requires_grad_(False)


def parallel_styles(block: nn.Module, plan: Plan) -> dict[str, ParallelStyle]:
    """torch's parallel style of each module, by path in the block. The adapter B·A of a layer is split as the layer is: B by the same
    outputs, or A by the same inputs. The other of the two is small and stays whole."""
    chosen: dict[str, ParallelStyle] = {}
    for path, cut in plan.items():
        adapted = hasattr(block.get_submodule(path), "base_layer")
        chosen[f"{path}.base_layer" if adapted else path] = STYLES[cut]()
        if adapted:
            chosen[f"{path}.lora_B.default" if cut == "outputs" else f"{path}.lora_A.default"] = STYLES[cut]()
    return chosen


def split_dimension(name: str, cut: Cut, dimensions: int) -> int | None:
    """Dimension in which a group splits a parameter, given its name inside a module of the plan, as `parallel_styles` does it. None: each
    rank has all of it."""
    if cut == "outputs" and ".lora_A." not in f".{name}":
        return 0
    if cut == "inputs" and ".lora_B." not in f".{name}" and dimensions == 2:
        return 1
    return None


STYLES: dict[Cut, Callable[[], ParallelStyle]] = {
    "outputs": ColwiseParallel,
    "inputs": RowwiseParallel,
    "heads": lambda: SequenceParallel(sequence_dim=2, use_local_output=True),
}


def check_placements(model: nn.Module, blocks: tuple[type[nn.Module], ...], plans: Plans) -> Iterator[nn.Parameter]:
    """Yields the parameters that a plan splits or replicates over a group. Raises `RuntimeError` for one that is placed otherwise."""
    for block in blocks_of(model, blocks):
        for path, style in parallel_styles(block, plan_of(block, plans)).items():
            for name, parameter in block.get_submodule(path).named_parameters():
                right = PLACEMENTS[type(style)][min(parameter.dim(), 2) - 1]
                found = parameter.placements[-1] if isinstance(parameter, DTensor) and parameter.device_mesh.ndim == 2 else None
                if found != right:
                    raise RuntimeError(f"{type(block).__name__}: {path}.{name} is placed as {found} in its group of ranks, not as {right}")
                yield parameter


PLACEMENTS: dict[type[ParallelStyle], tuple[Placement, Placement]] = {
    ColwiseParallel: (Shard(0), Shard(0)),
    RowwiseParallel: (Replicate(), Shard(1)),
    SequenceParallel: (Replicate(), Replicate()),
}
"""Placements of a vector and of a matrix in a group. The bias of a layer that is split by inputs is added once, after the sum, so it is
whole."""


def blocks_of(model: nn.Module, blocks: tuple[type[nn.Module], ...]) -> Iterator[nn.Module]:
    return (module for module in model.modules() if isinstance(module, blocks))


def plan_of(block: nn.Module, plans: Plans) -> Plan:
    """The plan for a block's class; empty if there is none."""
    return plans.get(class_path(block), {})


def class_path(block: nn.Module) -> str:
    """`module.ClassName` of a block, sharded or not: `fully_shard` replaces the class of a module with a subclass of its own."""
    original = next(kind for kind in type(block).__mro__ if not issubclass(kind, FSDPModule))
    return f"{original.__module__}.{original.__qualname__}"
