"""Tensor parallelism: neighbouring ranks share each matrix of a block, by a plan for each architecture (Shoeybi et al. 2019, Megatron-LM).

A block's first matrices are cut by their outputs and its last ones by their inputs, so that attention heads and hidden units stay on
one rank, and one sum over the group ends each half of the block. A plan belongs to a class of blocks; the rest of a model, with whatever
head and loss a recipe gave it, is left whole here and sharded over all ranks by `parallel.shard`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel, parallelize_module

from finetune.config import Config
from finetune.errors import UserError

Cut = Literal["outputs", "inputs", "heads"]
"""How the ranks of a group share a module: a linear layer's outputs or its inputs; or each normalises its own heads with all of a norm."""

LLAMA: dict[str, Cut] = {
    "self_attn.q_proj": "outputs",
    "self_attn.k_proj": "outputs",
    "self_attn.v_proj": "outputs",
    "self_attn.o_proj": "inputs",
    "mlp.gate_proj": "outputs",
    "mlp.up_proj": "outputs",
    "mlp.down_proj": "inputs",
}
# Without the norms, each rank would keep the gradient of its own heads alone, and the copies would drift apart without an error.
QWEN3: dict[str, Cut] = {**LLAMA, "self_attn.q_norm": "heads", "self_attn.k_norm": "heads"}

PLANS: dict[str, dict[str, Cut]] = {
    "transformers.models.llama.modeling_llama.LlamaDecoderLayer": LLAMA,
    "transformers.models.qwen3.modeling_qwen3.Qwen3DecoderLayer": QWEN3,
}
"""Block class → cut of each of its modules. One goes in here with its cases in tests/launch/test_covering.py."""


def check_model(model: nn.Module, blocks: tuple[type[nn.Module], ...], config: Config) -> None:
    """Refuse, with the reason, a model that `parallel.tensor` ranks cannot share. Raises `UserError`."""
    size = config.parallel.tensor
    if size == 1:
        return
    asked = f"parallel.tensor: {size}"
    for block in blocks_of(model, blocks):
        if class_of(block) not in PLANS:
            known = ", ".join(name.rpartition(".")[2] for name in PLANS)
            raise UserError(f"{asked}: there is no tested plan for {type(block).__name__}, only for {known}; drop parallel.tensor")
        check_shape(block.get_submodule("self_attn").config, size)
    lora = config.model.lora
    if config.model.quantization is not None:
        raise UserError(f"{asked}: model.quantization: {config.model.quantization} packs rows, which it would cut; drop one of the two")
    if lora is not None and lora.dora:
        raise UserError(f"{asked}: model.lora.dora measures rows of whole matrices, which no rank has; drop one of the two")
    if lora is not None and lora.dropout:
        raise UserError(f"{asked}: model.lora.dropout: {lora.dropout} {DRAWN_APART}; set it to 0")


def check_shape(shape: Any, size: int) -> None:
    """`shape` is the model's own config. Raises `UserError` for what `size` ranks cannot take equal numbers of."""
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        count = getattr(shape, key)
        if count % size:
            raise UserError(f"parallel.tensor: {size} does not divide the model's {key}: {count}; take a number that does")
    if shape.attention_dropout:
        raise UserError(f"parallel.tensor: {size}: attention_dropout: {shape.attention_dropout} {DRAWN_APART}; set it to 0 in config.json")


DRAWN_APART = "would be drawn by each rank for its own part, and the numbers would depend on parallel.tensor"


def share(model: nn.Module, blocks: tuple[type[nn.Module], ...], mesh: DeviceMesh) -> None:
    """Cut the blocks over the ranks of `mesh`, in place. After LoRA, and before `fully_shard`; parameters may be on meta."""
    for block in blocks_of(model, blocks):
        frozen = [name for name, parameter in block.named_parameters() if not parameter.requires_grad]
        parallelize_module(block, mesh, styles(block, PLANS[class_of(block)]), src_data_rank=None)
        for name in frozen:  # a norm comes back as a new parameter, which would be trained
            block.get_parameter(name).requires_grad_(False)


def styles(block: nn.Module, plan: dict[str, Cut]) -> dict[str, ParallelStyle]:
    """What torch is to do with each module of a block. An adapter B·A on a layer is cut as the layer is: B by the same outputs, or A by
    the same inputs, and the other of the two, which is small, stays whole."""
    chosen: dict[str, ParallelStyle] = {}
    for path, cut in plan.items():
        adapted = hasattr(block.get_submodule(path), "base_layer")
        chosen[f"{path}.base_layer" if adapted else path] = STYLES[cut]()
        if adapted:
            chosen[f"{path}.lora_B.default" if cut == "outputs" else f"{path}.lora_A.default"] = STYLES[cut]()
    return chosen


def divided_along(name: str, cut: Cut, dimensions: int) -> int | None:
    """Dimension of a parameter (its name inside a cut module) that a group divides, as `styles` has it; None: each rank has all of it."""
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


def check_shared(model: nn.Module, blocks: tuple[type[nn.Module], ...]) -> Iterator[nn.Parameter]:
    """The parameters that the plan cuts, or keeps alike on a group's ranks. Raises `RuntimeError` for one that is not as the plan says."""
    for block in blocks_of(model, blocks):
        for path, style in styles(block, PLANS[class_of(block)]).items():
            for name, parameter in block.get_submodule(path).named_parameters():
                right = PLACED[type(style)][min(parameter.dim(), 2) - 1]
                found = parameter.placements[-1] if isinstance(parameter, DTensor) and parameter.device_mesh.ndim == 2 else None
                if found != right:
                    raise RuntimeError(f"{type(block).__name__}: {path}.{name} is placed as {found} in its group of ranks, not as {right}")
                yield parameter


PLACED: dict[type[ParallelStyle], tuple[Placement, Placement]] = {
    ColwiseParallel: (Shard(0), Shard(0)),
    RowwiseParallel: (Replicate(), Shard(1)),
    SequenceParallel: (Replicate(), Replicate()),
}
"""Where a vector and a matrix lie in a group. A sum's bias is added once, so it is whole."""


def blocks_of(model: nn.Module, blocks: tuple[type[nn.Module], ...]) -> Iterator[nn.Module]:
    return (module for module in model.modules() if isinstance(module, blocks))


def class_of(block: nn.Module) -> str:
    own = next(kind for kind in type(block).__mro__ if not issubclass(kind, FSDPModule))  # `fully_shard` makes a class of its own
    return f"{own.__module__}.{own.__qualname__}"
