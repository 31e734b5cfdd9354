"""Staging buffers for asynchronous saves: host memory to which a rank's tensors are copied, so that training continues during the write.

Each rank has one buffer, which is allocated at the first save and reused, since a copy to new memory takes six times as long: the kernel
clears each page at its first use. On CUDA the buffer is page-locked, and the copies run on their own stream during the forward and backward
passes of the next step; only the optimizer update waits for them, on the device.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from overtone.finetune.checkpointing.rank_shards import TensorShard
from overtone.finetune.distributed.process_group import World, gather_from_ranks
from overtone.finetune.hardware.host_memory import free_host_memory

ALIGNMENT = 64
"""Alignment in bytes: a multiple of the size of every type, as views of another type need."""
SHARE = 0.8
"""Fraction of a machine's free memory that staging buffers may take: the page cache of the written files, and the run, need memory, too."""
PORTABLE = 1
"""`cudaHostRegisterPortable`: page-locked for every CUDA context of the process."""


class Claim(NamedTuple):
    """Size of one rank's staging buffer, and free memory of its machine, in bytes."""

    machine: str
    wanted: int
    free: int


class Staging:
    """The staging buffer of one rank. `release` frees its memory."""

    def __init__(self, size: int, stream: SideStream | None) -> None:
        """`size`: in bytes. `stream`: copies from a GPU. Raises `OSError` or `MemoryError` if the memory cannot be allocated."""
        self.bytes, self._stream = size, stream
        pages = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_DONTFORK)  # a fork would move pages that a GPU copies into
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)  # the first copy takes a third of the time: 2 MiB are cleared at once
        self._memory = torch.frombuffer(pages, dtype=torch.uint8)
        self.is_page_locked = stream is not None and page_lock(self._memory)

    def copy(self, parts: Mapping[str, TensorShard], volatile: Collection[str] = ()) -> tuple[dict[str, TensorShard], Callable[[], None]]:
        """Copy, or start copying; returns the parts in host memory, and a function that blocks until they are complete.

        `volatile`: names of tensors that a forward pass may change; the others change only in updates, before which `fence` is called. The
        previous copy must have been written to disk. Raises `ValueError` if the parts exceed the buffer.
        """
        if count_bytes(parts) > self.bytes:
            raise ValueError(f"{count_bytes(parts)} bytes for a staging buffer of {self.bytes}")
        staged: dict[str, TensorShard] = {}
        later: list[tuple[Tensor, Tensor]] = []
        offset = 0
        for name, part in parts.items():
            source = part.value.detach()
            target = self._memory[offset : offset + source.nbytes].view(source.dtype).view(source.shape)
            offset += _align(source.nbytes)
            staged[name] = TensorShard(target, part.offset)
            if self._stream is None or name in volatile:
                target.copy_(source, non_blocking=True)
            else:
                later.append((target, source))
        return staged, self._stream.copy(later) if self._stream is not None else _wait_for_nothing

    def fence(self) -> None:
        """Make later work on the device wait for running copies, so that it cannot overwrite their source. The host does not wait."""
        if self._stream is not None:
            self._stream.fence()

    def release(self) -> None:
        """Free the memory. Nothing may be copied or written at this time."""
        if self.is_page_locked:
            torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())
        self.is_page_locked, self.bytes, self._memory = False, 0, torch.empty(0, dtype=torch.uint8)


class SideStream:
    """Copies from one GPU to page-locked host memory, on its own CUDA stream."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._copied: torch.cuda.Event | None = None

    def copy(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], None]:
        """Enqueue (target, source) copies of the sources' current values; returns a function that blocks the host until all are done."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
                if source.is_cuda:  # under parallel.offload most are not
                    source.record_stream(self._stream)  # otherwise the memory of a temporary tensor could be reused while it is read
        self._copied = torch.cuda.Event(blocking=True)  # who waits for it sleeps
        self._copied.record(self._stream)
        return self._copied.synchronize

    def fence(self) -> None:
        """Make work that training enqueues from now on wait for the copies."""
        if self._copied is not None:
            torch.cuda.current_stream(self._device).wait_event(self._copied)
            self._copied = None


def allocate_staging(world: World, parts: Mapping[str, TensorShard]) -> tuple[Staging | None, str]:
    """Return a staging buffer on every rank, or on none if memory is short; and a log line. Collective: call on every rank."""
    own_claim = Claim(machine=platform.node(), wanted=count_bytes(parts), free=free_host_memory())
    claims = [Claim(**claim) for claim in gather_from_ranks(world, own_claim._asdict())]
    problems, own = find_shortages(claims), None
    if not problems:
        try:
            own = Staging(count_bytes(parts), SideStream(world.device) if on_gpu(parts) else None)
            failure = ""
        except (OSError, MemoryError) as error:
            failure = f"{platform.node()}: the memory cannot be allocated ({error})"
        kinds = gather_from_ranks(world, [failure, own is not None and own.is_page_locked])
        problems = [problem for problem, _ in kinds if problem]
    if problems:
        if own is not None:
            own.release()
        return None, (
            "warning: not enough host memory for asynchronous saves, so each save blocks training until it is written: "
            f"{'; '.join(problems)}; start fewer processes per machine, or add memory"
        )
    largest = max(claim.wanted for claim in claims)
    locked = ", page-locked" if all(is_locked for _, is_locked in kinds) else ""
    return own, f"asynchronous saves use {largest / 1e9:.2f} GB of host memory per rank{locked} until the run ends"


def find_shortages(claims: Sequence[Claim]) -> list[str]:
    """Return a line for each machine without enough free memory for the buffers of its ranks."""
    lines = []
    for machine in dict.fromkeys(claim.machine for claim in claims):
        own = [claim for claim in claims if claim.machine == machine]
        wanted, free = sum(claim.wanted for claim in own), min(claim.free for claim in own)
        if wanted > SHARE * free:
            lines.append(f"{machine}: {wanted / 1e9:.2f} GB for {len(own)} ranks, and {free / 1e9:.2f} GB are free")
    return lines


def count_bytes(parts: Mapping[str, TensorShard]) -> int:
    """Return the bytes of a staging buffer for one rank's parts."""
    return sum(_align(part.value.nbytes) for part in parts.values())


def on_gpu(parts: Mapping[str, TensorShard]) -> bool:
    """Return whether any part has to be copied from a GPU."""
    return any(part.value.is_cuda for part in parts.values())


def page_lock(memory: Tensor) -> bool:
    """Page-lock host memory for copies from a GPU; returns whether that succeeded, which a limit on locked memory may prevent.

    Not torch's pinned allocator, which rounds sizes up to the next power of two, 21 GB to 34.
    """
    if int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, PORTABLE)) == 0:
        return True
    with contextlib.suppress(RuntimeError):
        # The refused call leaves its error behind, and the check after the next kernel, which would be one of the training, raises it.
        torch.ones(1, device="cuda")
    return False


def _align(size: int) -> int:
    return math.ceil(size / ALIGNMENT) * ALIGNMENT


def _wait_for_nothing() -> None:
    """The copies are complete already."""
