"""Command-line options of the worker processes of a verb, local or on a Ray cluster."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from overtone.data_prep.parallel import ray_pool
from overtone.data_prep.parallel.devices import DEVICES
from overtone.data_prep.parallel.ray_pool import RayWorkers
from overtone.finetune.argument_parsing import check_choice
from overtone.finetune.errors import UserError


@dataclass(frozen=True)
class WorkerOptions:
    """Requested workers."""

    count: int | None = None
    """Number of processes; 0: this process only; None: chosen for the machine."""
    device: str | None = None
    """`cpu` or `cuda`; None: cuda if available."""
    remote: RayWorkers | None = None
    """Workers of a Ray cluster instead of local processes."""


def add_options(options: argparse.ArgumentParser, model: str) -> None:
    """Add the options to a parser; `model`: name of the model that runs on a GPU, for --help."""
    options.add_argument("--device", choices=DEVICES, help=f"device for {model} (default: cuda if available)")
    options.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="worker processes (default: one per core, as far as the memory of machine and GPUs allows); "
        "0: run in this process, without crash protection",
    )
    options.add_argument(
        "--engine", choices=["local", "ray"], default="local", help="where workers run; ray: on a Ray cluster (default %(default)s)"
    )
    options.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="Ray cluster; auto: the one running on this machine; local: start a new one (default: running one, else new)",
    )
    options.add_argument(
        "--gpus-per-worker", type=float, default=0.0, metavar="X", help="GPUs per Ray worker; 0.5: two workers share one GPU (default: 0)"
    )


@dataclass(frozen=True)
class WorkerFlags:
    """The options of the command line, by their names."""

    device: str | None = None
    workers: int | None = None
    engine: str = "local"
    ray_address: str | None = None
    gpus_per_worker: float = 0.0


def read_flags(arguments: argparse.Namespace) -> WorkerFlags:
    """Return the values of the options of `add_options`."""
    return WorkerFlags(arguments.device, arguments.workers, arguments.engine, arguments.ray_address, arguments.gpus_per_worker)


def check_options(options: WorkerFlags) -> None:
    """Raises `UserError` for invalid combinations of options."""
    check_choice("--device", options.device, DEVICES)
    if options.workers is not None and options.workers < 0:
        raise UserError(f"--workers {options.workers}: expected a number of processes, or 0 for this process only")
    if options.engine == "local" and (options.ray_address or options.gpus_per_worker):
        raise UserError("--ray-address and --gpus-per-worker need --engine ray")
    if options.engine == "ray" and (options.device or options.workers == 0 or options.gpus_per_worker < 0):
        raise UserError("--engine ray: use --gpus-per-worker (0 or more) instead of --device, and at least 1 for --workers")


@contextlib.contextmanager
def open_workers(options: WorkerFlags, shared: Path, needed: Sequence[Path | str | None]) -> Iterator[WorkerOptions]:
    """Connect to the cluster, if requested, before reading the input, which may take hours. Its machines must see files written to `shared`
    and must have the entries of `needed` that are files here. Raises `UserError`."""
    if options.engine == "local":
        yield WorkerOptions(options.workers, options.device)
        return
    there = [Path(name).absolute() for name in (Path.cwd(), *needed) if name and Path(name).exists()]
    with ray_pool.connect_workers(options.ray_address, options.workers, options.gpus_per_worker, shared.absolute(), there) as remote:
        yield WorkerOptions(remote=remote)
