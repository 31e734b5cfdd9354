"""Activation memory and FLOPs of a micro-batch, measured by tracing one training step of the real model on fake tensors.

Weights are torch's FakeTensors (shape, type and lifetime as on a real device, but no storage); ids and masks are real, since the model's
control flow may depend on them. The experts that positions are routed to are real too: equally many positions for each. Every storage that
an operation allocates is counted until it is freed; what is alive at the end of the forward pass is kept for the backward pass. There is no
list of operations and no formula: activation checkpointing, adapters, packed rows and fused losses are traced as they run.

A model has few layers outside its blocks and many equal blocks, so two blocks of each stack are traced, and the second is multiplied.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from overtone.finetune.distributed import activation_checkpointing, tensor_parallel
from overtone.finetune.distributed.tensor_parallel import NO_PLANS, Plans
from overtone.finetune.modeling.fake_tensor_weights import drop_storage
from overtone.finetune.recipe import Batch, Term

aten = torch.ops.aten
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._unsafe_index_put.default}
LARGEST_REAL = 2**30
"""Bytes of a real tensor, such as a mask, above which it gets no storage either."""
TRACED = 2
"""Traced blocks of each stack: the input of the first is kept by the layer before it; the second is representative of all others."""

Recomputing = Literal["none", "selective", "full"]
LossFunction = Callable[[nn.Module, Batch], dict[str, Term]]


@dataclass(frozen=True)
class Activations:
    """Memory of one micro-batch on one rank, in bytes, without weights and their gradients."""

    blocks: int
    """Bytes kept for the backward pass after the last block."""
    loss: int
    """Additional peak until the end of the forward pass: logits or their chunks, and gradients that a fused loss computes early."""
    working: int
    """Additional peak of the backward pass: a recomputed block, and gradients in flight."""
    kept: int
    """All bytes that the forward pass keeps for the backward pass, inside and outside of blocks."""
    flops: float
    """Floating-point operations of forward and backward, including recomputation."""
    positions: int
    """Positions of the micro-batch, as counted by `train.micro_tokens`."""

    @property
    def peak(self) -> int:
        return self.blocks + self.loss + self.working


@dataclass
class BlockStack:
    """A sequence of equal blocks, of which the first ones are traced."""

    count: int
    traced: list[nn.Module]
    kept: list[int] = field(default_factory=list)
    """Allocated bytes at the end of each traced block's forward."""
    flops: list[float] = field(default_factory=list)
    """Operations so far, at the same points."""
    turned: list[float] = field(default_factory=list)
    """Operations so far when the gradient reaches the last traced block, and after its backward."""
    without_gradients: list[float] = field(default_factory=list)
    """As `flops`, in a forward pass without gradients, which computes what `train.base_distance` compares with."""

    @property
    def untraced(self) -> int:
        return self.count - len(self.traced)

    @property
    def bytes_of_one(self) -> int:
        return self.kept[-1] - self.kept[-2] if self.untraced else 0

    @property
    def flops_of_one(self) -> float:
        if not self.untraced:
            return 0.0
        more = self.without_gradients[-1] - self.without_gradients[-2] if self.without_gradients else 0.0
        return self.flops[-1] - self.flops[-2] + self.turned[-1] - self.turned[0] + more


def trim_stacks(model: nn.Module, blocks: tuple[type[nn.Module], ...]) -> dict[str, int]:
    """Reduce each stack to `TRACED` blocks, in place; returns path of the stack → original number of blocks."""
    stacks = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and _is_stack(module, blocks)}
    for name, stack in stacks.items():
        model.set_submodule(name, nn.ModuleList(list(stack)[:TRACED]))
    return {name: len(stack) for name, stack in stacks.items()}


def _is_stack(stack: nn.ModuleList, blocks: tuple[type[nn.Module], ...]) -> bool:
    return len(stack) > 0 and all(isinstance(module, blocks) for module in stack)


def trace_step(
    trimmed: nn.Module, counts: dict[str, int], blocks: tuple[type[nn.Module], ...], loss: LossFunction, batch: Batch, positions: int,
    dtype: torch.dtype, recomputing: Recomputing, tensor: int = 1, plans: Plans = NO_PLANS,
) -> Activations:  # fmt: skip
    """Return memory and FLOPs of one step of the full model, from a copy that `trim_stacks` has shortened (parameters on meta,
    requires_grad as in training). The model is not changed.

    `counts`: the result of `trim_stacks`. `tensor`: number of tensor-parallel ranks.
    """
    model = copy.deepcopy(trimmed).train()
    if tensor > 1:
        narrow_to_shard(model, blocks, tensor, plans)
    activation_checkpointing.wrap_blocks(model, blocks, recomputing)
    stacks = [BlockStack(count, list(model.get_submodule(name))) for name, count in counts.items()]  # type: ignore[call-overload]
    mode = drop_storage(model, dtype)
    ledger = AllocationCounter([*model.parameters(), *model.buffers(), *batch.tensors.values()], mode)
    with ledger, record_blocks(model, stacks, ledger):
        objective = torch.stack([term.sum * term.weight for term in loss(model, batch).values() if term.weight]).sum()
        after_forward, kept = len(ledger.timeline), ledger.alive
        objective.backward()
    more = sum(stack.untraced * stack.bytes_of_one for stack in stacks)
    through = max((stack.kept[-1] for stack in stacks), default=0)
    forward, backward = max(ledger.timeline[:after_forward]), max(ledger.timeline[after_forward:])
    flops = ledger.flops + sum(stack.untraced * stack.flops_of_one for stack in stacks)
    return Activations(through + more, max(0, forward - through), max(0, backward - max(forward, through)), kept + more, flops, positions)


def narrow_to_shard(model: nn.Module, blocks: tuple[type[nn.Module], ...], size: int, plans: Plans) -> None:
    """Reduce each linear layer of the blocks, in place and on meta, to the shard of one of `size` tensor-parallel ranks."""
    for block in tensor_parallel.blocks_of(model, blocks):
        for path, cut in tensor_parallel.plan_of(block, plans).items():
            for name, parameter in block.get_submodule(path).named_parameters():
                dimension = tensor_parallel.split_dimension(name, cut, parameter.dim())
                if dimension is not None:
                    parameter.data = parameter.data.narrow(dimension, 0, parameter.shape[dimension] // size)


class AllocationCounter(TorchDispatchMode):
    """While open, counts the bytes of every storage that an operation allocates, and floating-point operations."""

    def __init__(self, given: list[Tensor], mode: FakeTensorMode) -> None:
        """`given`: existing tensors, which are not counted. `mode`: of tensors without storage."""
        super().__init__()
        self._mode = mode
        self.alive, self.flops = 0, 0.0
        self.timeline: list[int] = [0]
        """Allocated bytes after each operation."""
        self._known: dict[int, int] = {tensor.untyped_storage()._cdata: 0 for tensor in given}
        self._born: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        if function in INDEXING:
            args = (args[0], _replace_masks(args[1]), *args[2:])
        result = self._call(function, args, kwargs or {})
        if function._overloadpacket in flop_registry:
            self.flops += flop_registry[function._overloadpacket](*args, **(kwargs or {}), out_val=result)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._enter(leaf.untyped_storage())
        self.timeline.append(self.alive)
        return result

    def _call(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            result = function(*args, **kwargs)
            if function == aten.topk.default:
                values, chosen = result
                return values, (torch.arange(chosen.numel()) % args[0].shape[args[2] if len(args) > 2 else -1]).view(chosen.shape)
            return result
        if _elements_of_result(tensors, args) <= LARGEST_REAL:
            return function(*args, **kwargs)
        args, kwargs = tree_map(lambda leaf: self._mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf, (args, kwargs))
        with self._mode:
            return function(*args, **kwargs)

    def _enter(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._known:
            self._known[key], self._born[key] = storage.nbytes(), len(self.timeline)
            self.alive += storage.nbytes()
            weakref.finalize(storage, self._leave, key)

    def _leave(self, key: int) -> None:
        self.alive -= self._known.pop(key)

    def forget(self, tensor: Tensor) -> None:
        """Remove a tensor from the count, from its allocation on: the caller counts it."""
        key = tensor.untyped_storage()._cdata
        size, self._known[key] = self._known.get(key, 0), 0
        self.alive -= size
        for moment in range(self._born.get(key, len(self.timeline)), len(self.timeline)):
            self.timeline[moment] -= size


def _elements_of_result(tensors: list[Tensor], args: Sequence[object]) -> int:
    """Elements of what an operation makes of tensors by elements, or of a size; a mask has one byte for each."""
    if not tensors:
        sizes = args[0] if args and isinstance(args[0], list | tuple) else ()
        return math.prod(size for size in sizes if isinstance(size, int))
    try:
        return math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in tensors)))
    except RuntimeError:  # an operation of another kind
        return max(tensor.numel() for tensor in tensors)


def _replace_masks(indices: list[Tensor | None]) -> list[Tensor | None]:
    """Replace boolean masks by indices, since the size of a masked result is unknown for tensors without storage."""
    numbers: list[Tensor | None] = []
    for index in indices:
        numbers += index.nonzero().unbind(1) if index is not None and index.dtype == torch.bool else [index]
    return numbers


@contextmanager
def record_blocks(model: nn.Module, stacks: list[BlockStack], ledger: AllocationCounter) -> Iterator[None]:
    """While open, record memory and FLOPs at the traced blocks, and free the gradient of each parameter when it is complete: sharding
    reduces it, and finetune/planning/memory.py counts it."""

    def note(stack: BlockStack, _: nn.Module, args: object, kwargs: object, output: object) -> None:
        if not torch.is_grad_enabled():
            stack.without_gradients.append(ledger.flops)
            return
        stack.kept.append(ledger.alive)
        stack.flops.append(ledger.flops)
        if len(stack.kept) == len(stack.traced):
            arriving = next(leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
            leaving = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.requires_grad]
            for tensor in (arriving, *leaving[:1]):
                tensor.register_hook(lambda _: stack.turned.append(ledger.flops))

    def give_up(parameter: Tensor) -> None:
        assert parameter.grad is not None
        ledger.forget(parameter.grad)
        parameter.grad = None

    hooks = [block.register_forward_hook(partial(note, stack), with_kwargs=True) for stack in stacks for block in stack.traced]
    hooks += [parameter.register_post_accumulate_grad_hook(give_up) for parameter in model.parameters() if parameter.requires_grad]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
