"""Data parallelism without sharding (`ddp`): each rank has the full model, and gradients are averaged over the ranks in buckets.

`fully_shard` with one shard would still copy every weight once and every gradient twice per step. Here modules use the master weights
directly, or bf16 copies that are cast once per step. Between steps the model's parameters are DTensors, as under the sharded strategies, so
that clipping, optimizer and checkpoints use the same code.

Buckets are averaged during the backward pass, as in Li et al. 2020, PyTorch Distributed, arXiv:2006.15704.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.utils import _apply_to_tensors

BUCKET = 25 * 2**20
"""Bytes of gradients per bucket, as in torch's DistributedDataParallel: large enough for the bandwidth, small enough to overlap."""
ALIGNED = 64
"""Alignment of each gradient in a bucket, in elements: fused GPU kernels read unaligned data element by element."""

Slots = tuple[tuple[dict[str, nn.Parameter | None], str], ...]
"""The places of a parameter in the model: `_parameters` of a module, and the name in it. A tied parameter has several."""


@dataclass
class ReplicaWeight:
    """A parameter of the model."""

    slots: Slots
    master: nn.Parameter
    """The model's parameter between steps: a DTensor."""
    working: nn.Parameter
    """The parameter that modules compute with: shares the master's memory, or is a copy in the compute type."""
    source: Tensor
    """The master's local tensor."""
    gradient: DTensor
    """Gradient of the master if autograd accumulates a step's gradients by itself; its local tensor is set to theirs."""


@dataclass
class Bucket:
    """Gradients of a few parameters in one fp32 buffer."""

    weights: Sequence[ReplicaWeight]
    buffer: Tensor
    parts: Sequence[Tensor]
    """Views of the buffer, in the shapes of the weights."""
    gradients: Sequence[DTensor]
    """The same as DTensors, the gradients of the masters."""
    marks: Tensor
    """End of the buffer, one number per weight: after averaging, above zero if the weight has a gradient on any rank."""
    missing: int
    """Number of gradients that are not complete yet in this backward pass."""
    holds_sums: bool = False
    """True if it contains gradients of earlier micro-batches of this step."""
    reached: set[int] = field(default_factory=set)
    """Numbers of the weights that have had a gradient in this step, on this rank."""

    @torch.no_grad()
    def collect(self) -> None:
        """Accumulate the gradients of a backward pass in the fp32 buffer, and free them. Weights without a gradient count as zero."""
        came = {number: weight.working.grad for number, weight in enumerate(self.weights) if weight.working.grad is not None}
        parts, gradients = [self.parts[number] for number in came], [*came.values()]
        if not self.holds_sums and len(came) < len(self.parts):
            self.buffer.zero_()
        if came:  # torch's operations on lists refuse empty ones
            (torch._foreach_add_ if self.holds_sums else torch._foreach_copy_)(parts, gradients)
        for weight in self.weights:
            weight.working.grad = None
        self.reached.update(came)
        self.holds_sums = True
        self.missing = 0

    @torch.no_grad()
    def mark(self) -> None:
        """Record which weights have a gradient on this rank. Does not synchronize with the device."""
        self.marks.fill_(1.0)
        if unreached := [self.marks[number] for number in range(len(self.weights)) if number not in self.reached]:
            torch._foreach_zero_(unreached)

    def read_marks(self) -> None:
        """After averaging: add the weights that have a gradient on other ranks. Synchronizes only if some have none on this rank."""
        if len(self.reached) < len(self.weights):
            self.reached.update(number for number, mark in enumerate(self.marks.tolist()) if mark > 0)


class Replica:
    """The full weights of a model, which replace its DTensors from the first forward of a step to the end of its last backward.

    Hooks on the model's forward detect both. A weight without a gradient on all ranks keeps none; one that has a gradient only on other
    ranks gets theirs, since otherwise the ranks' weights would diverge.
    """

    def __init__(self, model: nn.Module, units: Iterable[nn.Module], mesh: DeviceMesh, compute: torch.dtype) -> None:
        """`units`: submodules whose floating-point inputs are cast to the compute type, as those of the model are."""
        self.last = True
        """True if the next backward is the last of its step."""
        self._slots, self._group, self._compute = replicate_parameters(model, mesh), mesh.get_group("replicate"), compute
        self.weights: list[ReplicaWeight] = []
        """Empty before the first forward, since the DTensors are allocated after the model is built."""
        self._copies: list[ReplicaWeight] = []
        self._buckets: list[Bucket] = []
        self._pending: list[Any] = []
        self._in_place, self._ends = False, False
        for unit in units if compute != torch.float32 else ():
            unit.register_forward_pre_hook(self._cast_inputs, prepend=True, with_kwargs=True)
        model.register_forward_pre_hook(self._begin_forward, prepend=True, with_kwargs=True)
        model.register_forward_hook(self._end_forward)

    @torch.no_grad()
    def gather(self) -> None:
        """Replace the DTensors by the weights; copies are cast again."""
        if self._in_place:
            return
        if not self.weights:
            self.weights = [make_weight(slots, self._compute) for slots in self._slots]
            self._copies = [weight for weight in self.weights if weight.working.dtype != weight.master.dtype]
            self._buckets = self._make_buckets()
        if self._copies:
            torch._foreach_copy_([weight.working for weight in self._copies], [weight.source for weight in self._copies])
        for weight in self.weights:
            if weight.master.grad is None:
                weight.gradient._local_tensor = weight.source  # which frees the last step's gradient
            elif not self._buckets:
                weight.working.grad = weight.gradient._local_tensor
            for parameters, name in weight.slots:
                parameters[name] = weight.working
        for bucket in self._buckets:
            bucket.holds_sums = bucket.holds_sums or any(weight.master.grad is not None for weight in bucket.weights)
            if not bucket.holds_sums:
                bucket.reached.clear()
        self._in_place = True

    def release(self) -> None:
        """Put the DTensors back."""
        for weight in self.weights if self._in_place else ():
            for parameters, name in weight.slots:
                parameters[name] = weight.master
        self._in_place = False

    def lasting(self) -> list[Tensor]:
        """All persistent tensors, masters and gradients; also within a step, while the model has other tensors in their place."""
        if self._buckets:
            return [weight.source for weight in self.weights] + [bucket.buffer for bucket in self._buckets]
        given = [weight.gradient._local_tensor for weight in self.weights if weight.gradient._local_tensor is not weight.source]
        coming = [weight.working.grad for weight in self.weights if weight.working.grad is not None]
        return [weight.source for weight in self.weights] + (coming or given)

    def _begin_forward(
        self, _: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        self.gather()
        return self._cast_inputs(_, args, kwargs)

    @torch.compiler.disable  # otherwise it would be traced for each input shape of a block; fully_shard's hooks are excluded, too
    def _cast_inputs(
        self, _: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        cast = partial(cast_floating, self._compute)
        return _apply_to_tensors(cast, args), _apply_to_tensors(cast, kwargs)

    def _end_forward(self, _: nn.Module, __: object, output: object) -> None:
        if torch.is_grad_enabled():
            _apply_to_tensors(self._watch, output)

    def _watch(self, tensor: Tensor) -> Tensor:
        if tensor.requires_grad:
            tensor.register_hook(self._begin_backward)
        return tensor

    def _begin_backward(self, _: Tensor) -> None:
        if not self._ends:
            self._ends = True
            Variable._execution_engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        self._ends = False
        for bucket in self._buckets:
            if bucket.missing:
                bucket.collect()
        self._average()
        for work in self._pending:
            work.wait()
        self._pending.clear()
        for bucket in self._buckets:
            bucket.missing = len(bucket.weights)
        if self.last:
            self._hand_over()
            self.release()

    def _complete_gradient(self, bucket_number: int) -> None:
        """One more weight of this bucket has its whole gradient of a backward pass."""
        bucket = self._buckets[bucket_number]
        bucket.missing -= 1
        if bucket.missing == 0:
            bucket.collect()
            self._average()

    def _average(self) -> None:
        """Start averaging complete buckets, in the same order on all ranks."""
        if not self.last or self._group.size() == 1:
            return
        for bucket in self._buckets[len(self._pending) :]:
            if bucket.missing:
                return
            bucket.mark()
            self._pending.append(dist.all_reduce(bucket.buffer, dist.ReduceOp.AVG, self._group, async_op=True))

    def _hand_over(self) -> None:
        """Set the step's gradients as those of the masters."""
        for bucket in self._buckets:
            if self._group.size() > 1:
                bucket.read_marks()
            for number in bucket.reached:
                bucket.weights[number].master.grad = bucket.gradients[number]
            bucket.holds_sums = False
        if not self._buckets:
            for weight in self.weights:
                gradient = weight.working.grad
                if gradient is not None:
                    weight.gradient._local_tensor = gradient
                    weight.master.grad = weight.gradient
                    weight.working.grad = None

    def _make_buckets(self) -> list[Bucket]:
        """The buckets of all trained weights; empty without any, and if autograd can accumulate the gradients by itself: on one rank in
        fp32."""
        trained = [weight for weight in self.weights if weight.working.requires_grad]
        if not trained:  # a frozen model
            return []
        if self._group.size() == 1 and all(weight.working.dtype == weight.master.dtype for weight in trained):
            return []
        trained.reverse()  # roughly the order in which a backward pass completes them
        left = iter(trained)
        buckets = [make_bucket(list(islice(left, count))) for count in split_into_buckets([weight.working.numel() for weight in trained])]
        for number, bucket in enumerate(buckets):
            for weight in bucket.weights:
                # Python's garbage collector does not see that autograd holds a hook: a strong reference would keep all weights and
                # gradients in memory after the model is gone.
                weight.working.register_post_accumulate_grad_hook(partial(notify_replica, weakref.ref(self), number))
        return buckets


def notify_replica(replica: weakref.ref[Replica], bucket_number: int, _: Tensor) -> None:
    """Hook of a weight: its gradient of this backward pass is complete."""
    if (alive := replica()) is not None:
        alive._complete_gradient(bucket_number)


def cast_floating(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def replicate_parameters(model: nn.Module, mesh: DeviceMesh) -> list[Slots]:
    """Replace each parameter of the model, in place, by a DTensor that is replicated on every rank; returns the places of each."""
    found: dict[nn.Parameter, list[tuple[dict[str, nn.Parameter | None], str]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                found.setdefault(parameter, []).append((module._parameters, name))
    for parameter, slots in found.items():
        whole = DTensor.from_local(parameter.data, mesh, (Replicate(), Shard(0)), run_check=False)
        master = nn.Parameter(whole, requires_grad=parameter.requires_grad)
        for parameters, name in slots:
            parameters[name] = master
    return [tuple(slots) for slots in found.values()]


def make_weight(slots: Slots, compute: torch.dtype) -> ReplicaWeight:
    """The weight at these places, with a copy only if the compute type differs."""
    parameters, name = slots[0]
    master: Any = parameters[name]
    source = whole = master.to_local().detach()
    if whole.is_floating_point() and whole.dtype != compute:
        whole = torch.empty_like(whole, dtype=compute)
    return ReplicaWeight(slots, master, nn.Parameter(whole, requires_grad=master.requires_grad), source, make_gradient(source, master))


def split_into_buckets(sizes: Sequence[int]) -> list[int]:
    """Number of parameters per bucket, given their numbers of elements: up to `BUCKET` bytes in fp32, or a single larger one."""
    counts, taken = [0], 0
    for size in sizes:
        if counts[-1] and 4 * (taken + size) > BUCKET:
            counts.append(0)
            taken = 0
        counts[-1] += 1
        taken += size
    return counts


def make_bucket(weights: Sequence[ReplicaWeight]) -> Bucket:
    room = [-(-weight.working.numel() // ALIGNED) * ALIGNED for weight in weights]
    buffer = torch.zeros(sum(room) + len(weights), dtype=torch.float32, device=weights[0].working.device)
    *rooms, marks = buffer.split([*room, len(weights)])
    parts = [part[: weight.working.numel()].view(weight.working.shape) for part, weight in zip(rooms, weights, strict=True)]
    gradients = [make_gradient(part, weight.master) for part, weight in zip(parts, weights, strict=True)]
    return Bucket(weights, buffer, parts, gradients, marks, len(weights))


def make_gradient(gradient: Tensor, master: Tensor) -> DTensor:
    """A gradient as a DTensor with the layout of its parameter, sharing memory."""
    assert isinstance(master, DTensor)
    return DTensor(gradient, master._spec, requires_grad=False)
