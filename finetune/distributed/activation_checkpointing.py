"""Activation checkpointing of blocks, full or selective: activations are recomputed in the backward pass."""

from __future__ import annotations

from functools import cache, partial
from typing import Literal

from torch import nn
from torch._ops import OpOverload
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    CheckpointWrapper,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


@cache
def kept_operations() -> frozenset[OpOverload]:
    """Operations whose results `selective` keeps: matrix products and attention take most of the time, but little of the memory."""
    import torch.nn.attention.varlen  # registers the last one; it imports torch's compiler, and every process would wait a second for it

    aten = torch.ops.aten
    return frozenset(
        {
            aten.mm.default,
            aten.addmm.default,
            aten.bmm.default,
            aten._scaled_dot_product_flash_attention.default,
            aten._scaled_dot_product_efficient_attention.default,
            aten._scaled_dot_product_cudnn_attention.default,
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            torch.ops.torch_attn._varlen_attn.default,
        }
    )


def wrap_blocks(model: nn.Module, blocks: tuple[type[nn.Module], ...], how: Literal["none", "selective", "full"]) -> None:
    """Wrap each block for activation checkpointing, in place. Call it before compiling and sharding."""
    if how == "none":
        return
    contexts = {"context_fn": partial(create_selective_checkpoint_contexts, _keep)} if how == "selective" else {}
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=lambda block: checkpoint_wrapper(block, checkpoint_impl=CheckpointImpl.NO_REENTRANT, **contexts),
        check_fn=lambda module: isinstance(module, blocks),
    )


def find_outermost_blocks(model: nn.Module, blocks: tuple[type[nn.Module], ...]) -> list[nn.Module]:
    """Each block, or the wrapper that `wrap_blocks` has put around it. These modules are sharded and compiled, so that recomputation is
    part of the compiled graph, and a block is gathered once for both."""
    found = [module for module in model.modules() if isinstance(module, (CheckpointWrapper, *blocks))]
    inside = {id(module._checkpoint_wrapped_module) for module in found if isinstance(module, CheckpointWrapper)}
    return [module for module in found if id(module) not in inside]


def block_of(module: nn.Module) -> nn.Module:
    """The module inside a checkpoint wrapper; any other module itself."""
    inner: nn.Module = module._checkpoint_wrapped_module if isinstance(module, CheckpointWrapper) else module
    return inner


def _keep(_: object, operation: OpOverload, *_arguments: object, **_options: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in kept_operations() else CheckpointPolicy.PREFER_RECOMPUTE
