"""Process groups: rank, number of ranks and device of this process, and small collectives (sums, broadcast and gather of JSON values).

These collectives use their own gloo group on the main thread, so they cannot interleave with those of training; nothing is pickled.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator

from overtone.finetune.errors import ElsewhereError, UserError
from overtone.finetune.hardware import cudnn_sdpa

ResultT = TypeVar("ResultT")
PATIENCE = timedelta(hours=6)
"""Timeout of the small collectives: ranks wait for rank 0 to index the data or download the base. NCCL's default is too short."""


@dataclass(frozen=True)
class World:
    """All ranks of the run, as seen by this process."""

    rank: int
    size: int
    device: torch.device
    accelerator: Accelerator
    votes: dist.ProcessGroup
    """gloo group for the small collectives, on the main thread only."""
    tensor: int = 1
    """Number of consecutive tensor-parallel ranks, which have the same micro-batches and the same randomness."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """Data-parallel rank."""
        return self.rank // self.tensor

    @property
    def data_size(self) -> int:
        """Number of data-parallel ranks."""
        return self.size // self.tensor


def join(trackers: tuple[str, ...], folder: Path) -> World:
    """Join the processes that the launcher started. Collective: call on every rank.

    Raises `UserError` if the process group does not contain all launched processes.
    """
    if torch.cuda.is_available() and "LOCAL_RANK" in os.environ and not dist.is_initialized():  # Ray has initialized it already
        # accelerate would initialize only nccl, and gradients in host memory (parallel.offload) could not be reduced.
        check_gpus(int(os.environ["LOCAL_RANK"]), torch.cuda.device_count())
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group(backends("cuda"))
    cudnn_sdpa.disable_cudnn()
    # True, as in most launch files for FSDP, lets transformers load weights on one process alone, also those of a codec or a judge.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), log_with=list(trackers) or None, project_dir=str(folder))
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]  # public, but missing in the module's __all__
        dist.init_process_group(backends(accelerator.device.type), store=store, rank=0, world_size=1)
    try:
        check_world(dist.get_world_size(), os.environ)
    except UserError:
        leave()
        raise
    return World(
        rank=dist.get_rank(),
        size=dist.get_world_size(),
        device=accelerator.device,
        accelerator=accelerator,
        votes=dist.new_group(backend="gloo", timeout=PATIENCE),
    )


def leave() -> None:
    """Destroy the process group. Without it, a rank that ends first would break connections that others still use."""
    if dist.is_initialized():
        dist.destroy_process_group()


def check_world(size: int, environ: Mapping[str, str]) -> None:
    """Raises `UserError` if a launcher has started independent processes: each would train alone and write the same folder."""
    launched = int(environ.get("WORLD_SIZE", "1"))
    if size != launched:
        raise UserError(
            f"{launched} processes were launched (WORLD_SIZE), but the process group has {size}; "
            "start with a launch file: --launch cpu or --launch fsdp2"
        )


def check_gpus(local_rank: int, gpus: int) -> None:
    """Raises `UserError` if there are more processes on a machine than GPUs; only the first such process prints it."""
    if local_rank >= gpus:
        kind = UserError if local_rank == gpus else ElsewhereError
        raise kind(
            f"more processes than GPUs were launched: {platform.node()} has {gpus}, and this is its process number {local_rank + 1}; "
            "--num_processes counts those of all machines together, one for each GPU"
        )


def idle_gpus(world: World) -> list[str]:
    """A line for each machine with more visible GPUs than processes of this run. Collective: call on every rank."""
    machines: dict[str, list[int]] = {}
    for machine, gpus in gather_from_ranks(world, [platform.node(), torch.cuda.device_count()]):
        machines.setdefault(machine, []).append(gpus)
    return [
        f"{max(gpus) - len(gpus)} of the {max(gpus)} visible GPUs of {machine} stay idle: {len(gpus)} of the run's processes are there; "
        "configs/fsdp2.yaml and ddp.yaml start one on each unless --num_processes says otherwise (over all machines together); "
        "CUDA_VISIBLE_DEVICES hides GPUs that are not for this run"
        for machine, gpus in machines.items()
        if len(gpus) < max(gpus)
    ]


def sum_over_ranks(world: World, values: list[float]) -> list[float]:
    """Element-wise sum over ranks, in fp64. Collective: call on every rank."""
    if world.size == 1:
        return values
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, group=world.votes)
    return [float(value) for value in tensor]


def sum_over_data_ranks(world: World, values: list[float]) -> list[float]:
    """Element-wise sum over data-parallel ranks; all tensor-parallel ranks of a group have equal values. Collective: call on every
    rank."""
    return [value / world.tensor for value in sum_over_ranks(world, values)]


def broadcast_from_main(world: World, value: Any) -> Any:
    """Rank 0's JSON value on every rank. Collective: call on every rank."""
    payload = json.dumps(value).encode() if world.is_main else b""
    length = torch.tensor([len(payload)])
    dist.broadcast(length, src=0, group=world.votes)
    data = torch.frombuffer(bytearray(payload), dtype=torch.uint8) if world.is_main else torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(data, src=0, group=world.votes)
    return json.loads(bytes(data.tolist()))


def gather_from_ranks(world: World, value: Any) -> list[Any]:
    """Every rank's JSON value, on every rank, by rank. Collective: call on every rank."""
    payload = json.dumps(value).encode()
    longest = torch.tensor([len(payload)])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=world.votes)
    padded = torch.frombuffer(bytearray(payload.ljust(int(longest))), dtype=torch.uint8)
    parts = [torch.empty_like(padded) for _ in range(world.size)]
    dist.all_gather(parts, padded, group=world.votes)
    return [json.loads(bytes(part.tolist())) for part in parts]


def gather_on_main(world: World, value: Any) -> list[Any]:
    """Every rank's JSON value by rank, on rank 0; none on the others. Collective: call on every rank."""
    payload = json.dumps(value).encode()
    longest = torch.tensor([len(payload)])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=world.votes)
    padded = torch.frombuffer(bytearray(payload.ljust(int(longest))), dtype=torch.uint8)
    parts = [torch.empty_like(padded) for _ in range(world.size)] if world.is_main else None
    dist.gather(padded, parts, dst=0, group=world.votes)
    return [json.loads(bytes(part.tolist())) for part in parts or ()]


def run_on_all(world: World, action: Callable[[], ResultT]) -> ResultT:
    """Run `action` on every rank; if it fails on any rank, raise an error on all, so that no rank waits for a missing one.

    Collective: call on every rank. A `UserError` stays a `UserError`, and only the first rank that has one prints it.
    """
    results, failure = _run_action(action)
    _raise_on_all(world, failure, gather_from_ranks(world, _report(failure)))
    return results[0]


def run_on_main(world: World, action: Callable[[], ResultT]) -> ResultT:
    """Run `action` on rank 0 and return its JSON result on all ranks; a failure is raised on all. Collective: call on every rank."""
    results, failure = _run_action(action) if world.is_main else ([], None)
    results, report = broadcast_from_main(world, [results, _report(failure)])
    _raise_on_all(world, failure, [report])
    return results[0]


def _run_action(action: Callable[[], ResultT]) -> tuple[list[ResultT], Exception | None]:
    """The result, alone in a list, or the failure."""
    try:
        return [action()], None
    except Exception as error:  # any failure must reach the other ranks before it is raised here
        return [], error


def _report(failure: Exception | None) -> tuple[bool, str] | None:
    """(whether it is a `UserError`, message) of a failure; None without one."""
    if failure is None:
        return None
    by_user = isinstance(failure, UserError)
    return by_user, str(failure) if by_user else f"{type(failure).__name__}: {failure}"


def _raise_on_all(world: World, failure: Exception | None, reports: Sequence[tuple[bool, str] | None]) -> None:
    """Raise this rank's `failure`, or that of the first rank that reports one."""
    first, report = next(((rank, report) for rank, report in enumerate(reports) if report is not None), (None, None))
    if failure is not None and (first == world.rank or not isinstance(failure, UserError)):
        raise failure
    if report is not None:
        by_user, message = report
        raise (ElsewhereError if by_user else RuntimeError)(f"rank {first} failed: {message}") from failure


def backends(kind: str) -> str:
    """Backends of training's collectives, by the device of a tensor, for runs on this kind of device."""
    return "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
