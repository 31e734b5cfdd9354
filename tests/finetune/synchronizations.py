"""Where code makes the host wait for the device, with the lines: what a step costs a GPU that stands idle meanwhile.

    with synchronizations(device, on_host=batch.tensors.values()) as found:
        ...
    assert [each.kind for each in found] == ["tolist"], report(found)

On a GPU torch's own `set_sync_debug_mode` finds them; it overlooks copies from memory that is not pinned, which are found here. On a CPU
nothing ever waits, so that the same device stands for both sides. There every tensor counts as the device's but for those `on_host`: what
a constructor makes without `device` (as `torch.tensor(numbers)`), what `.cpu()` or `.to("cpu")` returned, and what was computed from
such tensors alone. A `torch.device` counts as that of the run, so code that means the host must write "cpu".
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from overtone.finetune.data import batching
from overtone.finetune.training.step import Training, make_loader, train_step

ROOT, TORCH = Path(__file__).parents[2], str(Path(torch.__file__).parent)
aten = torch.ops.aten
SIZES = frozenset(
    {
        *(aten.nonzero, aten.masked_select, aten.argwhere, aten.bincount, aten.equal),
        *(aten._unique, aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.unique_dim_consecutive),
    }
)
"""Operations whose result has a size, or is a Python number, that depends on values."""
INDEXING = frozenset({aten.index, aten._unsafe_index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index_put})
FROM_NUMBERS = frozenset({torch.tensor, torch.as_tensor, torch.asarray})


@dataclass(frozen=True)
class Synchronization:
    kind: str
    """item, nonzero, boolean index, copy, tolist or numpy; on a GPU torch names none but those copies that it overlooks."""
    place: str
    """file:line of the first frame outside of torch, and the innermost one of torch if it is there that the host waits."""

    def __str__(self) -> str:
        return f"{self.kind} at {self.place}"


def report(found: list[Synchronization]) -> str:
    return "\n".join([f"{len(found)} synchronizations:", *map(str, found)])


def waits_of_steps(training: Training, steps: int) -> list[list[Synchronization]]:
    """Of the first optimizer steps of a run, on one rank, whose batches the loader makes ahead and pins as for a GPU."""
    waits: list[list[Synchronization]] = []
    order, world = training.order, training.world
    todo = islice(batching.steps(order, training.rows.lengths, batching.Place(), epochs=None), steps)
    loader = make_loader(replace(training, world=replace(world, device=torch.device("cuda"))), training.rows)
    with closing(loader), synchronizations(world.device) as found:
        for number, (_, turns) in enumerate(loader.iterate(todo)):
            assert len(turns) >= 3 and all(tensor.is_pinned() for turn in turns for tensor in turn.batch.tensors.values())
            train_step(training, turns, number)
            waits.append(found[:])
            found.clear()
    return waits


@contextmanager
def synchronizations(device: torch.device, on_host: Iterable[Tensor] = ()) -> Iterator[list[Synchronization]]:
    """While open, collects every wait of this thread for the device. `on_host` are tensors, made before, that are in host memory."""
    found: list[Synchronization] = []
    with ExitStack() as stack:
        (_watch_gpu if device.type == "cuda" else _watch_cpu)(stack, found, on_host)
        yield found


def _note(found: list[Synchronization], kind: str) -> None:
    frame, inner, outer = sys._getframe(1), "", ""
    while frame is not None and not outer:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if file.startswith((f"{TORCH}/_dynamo", f"{TORCH}/_compile")):
            pass  # it stands between every operation and a dispatch mode
        elif file.startswith(TORCH):
            inner = inner or f"{file.removeprefix(TORCH + '/')}:{line}"
        elif file not in (__file__, mock.__file__, warnings.__file__) and not file.startswith("<"):
            outer = f"{file.removeprefix(f'{ROOT}/')}:{line}"
        frame = frame.f_back  # type: ignore[assignment]
    found.append(Synchronization(kind, f"{outer} (torch/{inner})" if inner else outer))


def _watch_gpu(stack: ExitStack, found: list[Synchronization], _: Iterable[Tensor]) -> None:
    """torch warns of each wait, from whichever thread; the warnings are collected instead of shown."""
    stack.enter_context(warnings.catch_warnings())
    warnings.simplefilter("always")
    shown = warnings.showwarning

    def show(message: Warning | str, *rest: Any, **more: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            _note(found, "synchronization")
        else:
            shown(message, *rest, **more)  # type: ignore[arg-type]

    stack.enter_context(mock.patch.object(warnings, "showwarning", show))
    stack.callback(torch.cuda.set_sync_debug_mode, torch.cuda.get_sync_debug_mode())
    torch.cuda.set_sync_debug_mode("warn")
    stack.enter_context(_Pageable(found))


class _Pageable(TorchDispatchMode):
    """Copies that are meant not to block, and do: the driver first waits for the stream if the host's memory is not pinned."""

    def __init__(self, found: list[Synchronization]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _has_own_rule(types):
            return NotImplemented
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket in (aten._to_copy, aten.copy_):
            source = args[1] if function.overloadpacket is aten.copy_ else args[0]
            where = args[0] if function.overloadpacket is aten.copy_ else result
            asynchronous = (kwargs or {}).get("non_blocking", args[2] if len(args) > 2 else False)
            if asynchronous and source.device.type == "cpu" and where.is_cuda and source.numel() and not source.is_pinned():
                _note(self.found, "copy")
        return result


def _has_own_rule(types: Iterable[type]) -> bool:
    """Whether a subclass (a DTensor) will turn this operation into others, on plain tensors, which come by here again."""
    return any(getattr(kind, "__torch_dispatch__", None) not in (None, torch._C._disabled_torch_dispatch_impl) for kind in types)


def _watch_cpu(stack: ExitStack, found: list[Synchronization], on_host: Iterable[Tensor]) -> None:
    sides = _Sides(found)
    for tensor in on_host:
        sides.put_on_host(tensor)
    for owner, name, method in sides.patches():
        stack.enter_context(mock.patch.object(owner, name, method))
    stack.enter_context(_Constructors(sides))
    stack.enter_context(_Operations(sides))


def _directly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of torch that does not first look its own name up, for a mode, where it would find the patch that calls it."""

    def called(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return method(*args, **kwargs)

    return called


class _Sides:
    """Which tensors count as in host memory, and the methods that a dispatch mode does not see, since on a CPU they do nothing."""

    def __init__(self, found: list[Synchronization]) -> None:
        self.found, self.thread = found, threading.get_ident()
        self.host: set[StorageWeakRef] = set()
        self.pinned: set[StorageWeakRef] = set()
        self.filling = False
        """While a mask is filled with a Python number, for which torch needs no row numbers."""

    def note(self, kind: str) -> None:
        if threading.get_ident() == self.thread:
            _note(self.found, kind)

    def on_host(self, tensor: Tensor) -> bool:
        return StorageWeakRef(tensor.untyped_storage()) in self.host

    def put_on_host(self, tensor: Tensor) -> None:
        self.host.add(StorageWeakRef(tensor.untyped_storage()))

    def patches(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        to, cpu, new, fill = map(_directly, (Tensor.to, Tensor.cpu, Tensor.new_tensor, Tensor.__setitem__))

        def moved(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            target = kwargs.get("device", args[0] if args else None)
            device, _, asynchronous, _ = torch._C._nn._parse_to(*args, **{k: v for k, v in kwargs.items() if k != "copy"})
            result = to(tensor, *args, **kwargs)
            if device is None or isinstance(target, Tensor):
                return result
            return self.copied(tensor, result, to_host=isinstance(target, str), asynchronous=asynchronous)

        def returned(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            return self.copied(tensor, cpu(tensor, *args, **kwargs), to_host=True, asynchronous=False)

        def pinned(tensor: Tensor, *_: Any) -> Tensor:
            result = tensor.detach().clone()
            self.put_on_host(result)
            self.pinned.add(StorageWeakRef(result.untyped_storage()))
            return result

        def like(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            result = new(tensor, *args, **kwargs)
            if self.on_host(tensor):
                self.put_on_host(result)
            else:
                self.note("copy")
            return result

        def filled(tensor: Tensor, key: Any, value: Any) -> None:
            self.filling = isinstance(value, (bool, int, float))
            try:
                fill(tensor, key, value)
            finally:
                self.filling = False

        methods = {"to": moved, "cpu": returned, "pin_memory": pinned, "new_tensor": like, "__setitem__": filled}
        yield from ((Tensor, name, method) for name, method in methods.items())
        yield Tensor, "is_pinned", lambda tensor, *_: StorageWeakRef(tensor.untyped_storage()) in self.pinned
        yield from ((Tensor, name, self.read(name)) for name in ("tolist", "numpy"))
        yield from ((torch, name, self.made(getattr(torch, name))) for name in ("from_numpy", "frombuffer"))

    def read(self, name: str) -> Callable[..., Any]:
        """Into Python or numpy."""
        own = _directly(getattr(Tensor, name))

        def reading(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not self.on_host(tensor):
                self.note(name)
            return own(tensor, *args, **kwargs)

        return reading

    def made(self, own: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """In host memory, always."""

        def making(*args: Any, **kwargs: Any) -> Tensor:
            result = own(*args, **kwargs)
            self.put_on_host(result)
            return result

        return making

    def copied(self, source: Tensor, result: Tensor, to_host: bool, asynchronous: bool) -> Tensor:
        """The result on its side. Copies from host memory block unless it is pinned; those to it go into pinned memory by themselves."""
        if self.on_host(source) is to_host:
            return result
        if not (asynchronous and (to_host or source.is_pinned())):
            self.note("copy")
        other = result.clone()
        (self.host.add if to_host else self.host.discard)(StorageWeakRef(other.untyped_storage()))
        return other


class _Constructors(TorchFunctionMode):
    """Tensors from nothing, or from Python's numbers."""

    def __init__(self, sides: _Sides) -> None:
        super().__init__()
        self.sides, self.known = sides, _device_constructors()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function not in self.known:
            return result
        device, of_tensor = kwargs.get("device"), bool(args) and isinstance(args[0], Tensor)
        if device is None or isinstance(device, str):
            if not of_tensor:
                self.sides.put_on_host(result)
        elif function in FROM_NUMBERS and not of_tensor:
            self.sides.note("copy")
        elif function in FROM_NUMBERS:
            return self.sides.copied(args[0], result, to_host=False, asynchronous=False)
        return result


class _Operations(TorchDispatchMode):
    """Everything that torch computes."""

    def __init__(self, sides: _Sides) -> None:
        super().__init__()
        self.sides = sides

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _has_own_rule(types):
            return NotImplemented
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_host = bool(given) and all(map(self.sides.on_host, given))
        if not on_host and (kind := self.kind(function.overloadpacket, args, kwargs)):
            self.sides.note(kind)
        result = function(*args, **kwargs)
        for leaf in tree_leaves(result) if on_host else ():
            if isinstance(leaf, Tensor):
                self.sides.put_on_host(leaf)
        return result

    def kind(self, operation: Any, args: Any, kwargs: Any) -> str | None:
        """Why the host waits for this operation on tensors of the device; None: it does not."""
        if operation is aten._local_scalar_dense:
            return "item"
        if operation in SIZES or (operation is aten.repeat_interleave and kwargs.get("output_size") is None):
            return "nonzero"
        if operation in INDEXING:
            indices = [each for each in args[1] if each is not None]
            if any(each.dtype in (torch.bool, torch.uint8) for each in indices):
                return None if self.sides.filling else "boolean index"
            if not self.sides.on_host(args[0]) and any(map(self.sides.on_host, indices)):
                return "copy"
        if operation is aten.copy_ and self.sides.on_host(args[0]) is not self.sides.on_host(args[1]):
            asynchronous = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
            return None if asynchronous and any(each.is_pinned() for each in args[:2]) else "copy"
        return None
