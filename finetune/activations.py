"""What a micro-batch needs besides weights: one step of the real model, forward and backward, on tensors that have no storage.

Weights are torch's FakeTensors (shape, type, and lifetime as on a real device, but no bytes), ids and masks are real, so that what a model
decides by them is decided. Every storage that an operation makes is counted from its birth to its death; what is alive when the forward
pass is over is what the backward pass needs. No list of operations and no formula is behind it: checkpointing, adapters, packed rows and
fused losses are traced as they run.

A model is a few layers outside its blocks and many equal blocks, so two blocks of each stack are traced, and the second is multiplied.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from finetune import recompute, tensor_parallel
from finetune.recipe import Batch, Term
from finetune.tensor_parallel import NO_PLANS, Plans

aten = torch.ops.aten
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._unsafe_index_put.default}
TRACED = 2
"""Blocks of each stack: the first one's input is kept by what comes before it, the second is like all others."""

Recomputing = Literal["none", "selective", "full"]
Loss = Callable[[nn.Module, Batch], dict[str, Term]]


@dataclass(frozen=True)
class Activations:
    """Of one micro-batch on one rank, in bytes, without weights and their gradients."""

    blocks: int
    """Kept for the backward pass once the last block is through."""
    loss: int
    """More than that at most until the forward pass ends: logits or their chunks, the gradients that a fused loss makes at once."""
    working: int
    """More than both at most in the backward pass: a block computed again, gradients on their way down."""
    kept: int
    """All that the forward pass leaves to the backward pass, in blocks and around them."""
    flops: float
    """Floating-point operations of forward and backward, what is computed again included."""
    positions: int
    """Of the micro-batch, as `train.micro_tokens` counts them."""

    @property
    def peak(self) -> int:
        return self.blocks + self.loss + self.working


@dataclass
class Stack:
    """Equal blocks in a row, of which the first ones are traced."""

    count: int
    traced: list[nn.Module]
    kept: list[int] = field(default_factory=list)
    """Bytes alive, each time a traced block's forward ends."""
    flops: list[float] = field(default_factory=list)
    """Operations so far, then too."""
    turned: list[float] = field(default_factory=list)
    """Operations so far when the gradient reaches the last traced block, and when it has left it."""

    @property
    def untraced(self) -> int:
        return self.count - len(self.traced)

    @property
    def bytes_of_one(self) -> int:
        return self.kept[-1] - self.kept[-2] if self.untraced else 0

    @property
    def flops_of_one(self) -> float:
        return self.flops[-1] - self.flops[-2] + self.turned[-1] - self.turned[0] if self.untraced else 0.0


def trim(model: nn.Module, blocks: tuple[type[nn.Module], ...]) -> dict[str, int]:
    """Leave `TRACED` blocks in each stack, in place; path of the stack → blocks that it had."""
    stacks = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and _holds(module, blocks)}
    for name, stack in stacks.items():
        model.set_submodule(name, nn.ModuleList(list(stack)[:TRACED]))
    return {name: len(stack) for name, stack in stacks.items()}


def _holds(stack: nn.ModuleList, blocks: tuple[type[nn.Module], ...]) -> bool:
    return len(stack) > 0 and all(isinstance(module, blocks) for module in stack)


def trace(
    trimmed: nn.Module, counts: dict[str, int], blocks: tuple[type[nn.Module], ...], loss: Loss, batch: Batch, positions: int,
    dtype: torch.dtype, recomputing: Recomputing, tensor: int = 1, plans: Plans = NO_PLANS,
) -> Activations:  # fmt: skip
    """One step of a model that `trim` has shortened (parameters on meta, requires_grad as trained). It is left as it is.

    `counts` is what `trim` said, `tensor` how many ranks share each matrix of a block. The work of a step on the whole model follows.
    """
    model = copy.deepcopy(trimmed).train()
    if tensor > 1:
        narrow(model, blocks, tensor, plans)
    recompute.wrap(model, blocks, recomputing)
    stacks = [Stack(count, list(model.get_submodule(name))) for name, count in counts.items()]  # type: ignore[call-overload]
    without_storage(model, dtype)
    ledger = Ledger([*model.parameters(), *model.buffers(), *batch.tensors.values()])
    with ledger, watched(model, stacks, ledger):
        objective = torch.stack([term.sum * term.weight for term in loss(model, batch).values() if term.weight]).sum()
        after_forward, kept = len(ledger.timeline), ledger.alive
        objective.backward()
    more = sum(stack.untraced * stack.bytes_of_one for stack in stacks)
    through = max((stack.kept[-1] for stack in stacks), default=0)
    forward, backward = max(ledger.timeline[:after_forward]), max(ledger.timeline[after_forward:])
    flops = ledger.flops + sum(stack.untraced * stack.flops_of_one for stack in stacks)
    return Activations(through + more, max(0, forward - through), max(0, backward - max(forward, through)), kept + more, flops, positions)


def without_storage(model: nn.Module, dtype: torch.dtype) -> None:
    """Replace parameters, in place, by such that have no storage: floating point in the compute type, as sharding casts them."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, nn.Parameter] = {}  # a tied weight stays one
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in made:
                kind = dtype if parameter.is_floating_point() else parameter.dtype
                with mode:
                    empty = torch.empty(parameter.shape, dtype=kind, device="cpu")
                made[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
            if parameter is not None:
                module._parameters[name] = made[id(parameter)]


def narrow(model: nn.Module, blocks: tuple[type[nn.Module], ...], size: int, plans: Plans) -> None:
    """Reduce each linear layer of the blocks, in place and on meta, to the shard of one of `size` tensor-parallel ranks."""
    for block in tensor_parallel.blocks_of(model, blocks):
        for path, cut in tensor_parallel.plan_of(block, plans).items():
            for name, parameter in block.get_submodule(path).named_parameters():
                dimension = tensor_parallel.split_dimension(name, cut, parameter.dim())
                if dimension is not None:
                    parameter.data = parameter.data.narrow(dimension, 0, parameter.shape[dimension] // size)


class Ledger(TorchDispatchMode):
    """While open, counts the bytes of every storage that an operation makes, and floating-point operations."""

    def __init__(self, given: list[Tensor]) -> None:
        """What is `given` was there before, and is not counted."""
        super().__init__()
        self.alive, self.flops = 0, 0.0
        self.timeline: list[int] = [0]
        """Bytes alive after each operation."""
        self._known: dict[int, int] = {tensor.untyped_storage()._cdata: 0 for tensor in given}
        self._born: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        if function in INDEXING:
            args = (args[0], _by_number(args[1]), *args[2:])
        result = function(*args, **(kwargs or {}))
        if function._overloadpacket in flop_registry:
            self.flops += flop_registry[function._overloadpacket](*args, **(kwargs or {}), out_val=result)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._enter(leaf.untyped_storage())
        self.timeline.append(self.alive)
        return result

    def _enter(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._known:
            self._known[key], self._born[key] = storage.nbytes(), len(self.timeline)
            self.alive += storage.nbytes()
            weakref.finalize(storage, self._leave, key)

    def _leave(self, key: int) -> None:
        self.alive -= self._known.pop(key)

    def forget(self, tensor: Tensor) -> None:
        """Take a tensor out of the account, from its birth on: whoever calls accounts for it."""
        key = tensor.untyped_storage()._cdata
        size, self._known[key] = self._known.get(key, 0), 0
        self.alive -= size
        for moment in range(self._born.get(key, len(self.timeline)), len(self.timeline)):
            self.timeline[moment] -= size


def _by_number(indices: list[Tensor | None]) -> list[Tensor | None]:
    """Masks as the numbers of what they choose: how many that are, a tensor without storage could not say."""
    numbers: list[Tensor | None] = []
    for index in indices:
        numbers += index.nonzero().unbind(1) if index is not None and index.dtype == torch.bool else [index]
    return numbers


@contextmanager
def watched(model: nn.Module, stacks: list[Stack], ledger: Ledger) -> Iterator[None]:
    """While open, each stack takes note as its blocks are passed, and the gradient of a parameter is gone once it is there: sharding
    reduces it, and `memory` counts it."""

    def note(stack: Stack, inputs: Any, output: Any) -> None:
        stack.kept.append(ledger.alive)
        stack.flops.append(ledger.flops)
        if len(stack.kept) == len(stack.traced):
            arriving = next(leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
            leaving = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
            for tensor in (arriving, *leaving[:1]):
                tensor.register_hook(lambda _: stack.turned.append(ledger.flops))

    def give_up(parameter: Tensor) -> None:
        assert parameter.grad is not None
        ledger.forget(parameter.grad)
        parameter.grad = None

    hooks = [block.register_forward_hook(_noting(note, stack), with_kwargs=True) for stack in stacks for block in stack.traced]
    hooks += [parameter.register_post_accumulate_grad_hook(give_up) for parameter in model.parameters() if parameter.requires_grad]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _noting(note: Callable[[Stack, Any, Any], None], stack: Stack) -> Callable[..., None]:
    return lambda _module, args, kwargs, output: note(stack, (args, kwargs), output)
