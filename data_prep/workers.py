"""Which processes do a verb's work: those of this machine, or the workers of a Ray cluster. The options for it, and the sharing out."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from data_prep import pool, ray_engine
from data_prep.device import DEVICES, choose_device, make_current, spread
from data_prep.pool import Failure, Stop
from data_prep.ray_engine import Remote
from finetune.errors import UserError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Workers:
    """What was asked for."""

    count: int | None = None
    """Processes; 0: none besides this one; None: as many as the machine carries."""
    device: str | None = None
    """`cpu` or `cuda`; None: the better one that is there."""
    remote: Remote | None = None
    """Workers of a Ray cluster, in place of processes of this machine."""


def ask(options: argparse.ArgumentParser, model: str) -> None:
    """Add the options; `model` is what runs on a GPU."""
    options.add_argument("--device", choices=DEVICES, help=f"where {model} runs (default: cuda if there is one)")
    options.add_argument(
        "--workers", type=int, metavar="N", help="processes that work (default: one for each GPU, or core); 0: this one, unprotected"
    )
    options.add_argument(
        "--engine", choices=["local", "ray"], default="local", help="ray: the workers are those of a Ray cluster (default %(default)s)"
    )
    options.add_argument(
        "--ray-address", metavar="HOST:PORT", help="which cluster; auto: the one that runs here; local: a new one (default: any of them)"
    )
    options.add_argument("--gpus-per-worker", type=float, default=0.0, metavar="X", help="under ray; 0.5: two share one (default: 0)")


def check(options: argparse.Namespace) -> None:
    """Raises `UserError` for options that do not go together."""
    if options.workers is not None and options.workers < 0:
        raise UserError(f"--workers {options.workers}: a number of processes is expected, or 0 for none besides this one")
    if options.engine == "local" and (options.ray_address or options.gpus_per_worker):
        raise UserError("--ray-address and --gpus-per-worker are for --engine ray")
    if options.engine == "ray" and (options.device or options.workers == 0 or options.gpus_per_worker < 0):
        raise UserError("--engine ray: --gpus-per-worker, from 0, says where models run, instead of --device; and --workers begin at 1")


@contextlib.contextmanager
def found(options: argparse.Namespace, shared: Path, needed: Sequence[Path | str | None]) -> Iterator[Workers]:
    """Connect to a cluster if one is to work: before anything is read, which may take hours. Its machines must see what is written to
    `shared`, and have those of `needed` that are files here. Raises `UserError`."""
    if options.engine == "local":
        yield Workers(options.workers, options.device)
        return
    there = [Path(name).absolute() for name in (Path.cwd(), *needed) if name and Path(name).exists()]
    with ray_engine.opened(options.ray_address, options.workers, options.gpus_per_worker, shared.absolute(), there) as remote:
        yield Workers(remote=remote)


def share_out(
    items: Sequence[T], make: Callable[[str], AbstractContextManager[Callable[[T], R]]], workers: Workers, memory_each: int, stop: Stop
) -> Iterator[tuple[int, R | Failure]]:
    """(index, result) of each item as it comes; fewer if `stop` was asked for. `make` gets the device that its worker is to use, and has
    to be picklable; of as many workers as cores each may take `memory_each` bytes."""
    if workers.remote is not None:
        return ray_engine.run(items, functools.partial(_made, make, ["cuda" if workers.remote.gpus else "cpu"]), workers.remote, stop)
    devices = spread(choose_device(workers.device), workers.count if workers.count != 0 else 1, memory_each)
    return pool.run(items, functools.partial(_made, make, devices), min(len(devices), len(items)) if workers.count != 0 else 0, stop)


def _made(
    make: Callable[[str], AbstractContextManager[Callable[[T], R]]], devices: list[str], number: int
) -> AbstractContextManager[Callable[[T], R]]:
    """What the worker of this number does its work with, once it is in that worker."""
    make_current(devices[number])
    return make(devices[number])
