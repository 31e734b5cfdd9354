"""Batch generation on the workers of a Ray cluster: `--engine ray` of `generate` and `eval-voice`.

A worker gets the batches that one process would generate, with that process's number of threads, and all randomness of a request is a
function of its seed and number. So the results are those of one process, whichever worker generates which batch, on devices of one type.
Must not import torch: `--help` reads this module.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from overtone.finetune.errors import UserError, format_count
from overtone.finetune.ray_cluster import cluster_checks, cluster_connection

if TYPE_CHECKING:
    from overtone.data_prep.parallel.process_pool import Failure, Make
    from overtone.data_prep.parallel.ray_pool import RayWorkers

T = TypeVar("T")
R = TypeVar("R")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the engine to the parser of a verb."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--engine",
        choices=["local", "ray"],
        default="local",
        help="where to generate; ray: on a Ray cluster (default %(default)s)",
    )
    group.add_argument("--workers", type=int, metavar="N", help="with --engine ray: processes (default: as many as there is room for)")
    group.add_argument(
        "--gpus-per-worker",
        type=float,
        metavar="X",
        help="with --engine ray: GPUs of each worker; 0.5: two share one; 0: CPU (default: 1 if the cluster has any)",
    )
    group.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="with --engine ray: the cluster; auto: the one that runs here; local: a new one (default: running one, else new)",
    )


@dataclass(frozen=True)
class GenerationEngine:
    """Place of the generation; the fields are the options of `add_engine_options`."""

    engine: Literal["local", "ray"] = "local"
    workers: int | None = None
    gpus_per_worker: float | None = None
    ray_address: str | None = None


def read_engine(args: argparse.Namespace) -> GenerationEngine:
    """The engine on the command line. Raises `UserError` for invalid combinations of its options."""
    given = [name for name in ("workers", "gpus_per_worker", "ray_address") if getattr(args, name) is not None]
    if args.engine == "local" and given:
        raise UserError(f"--{given[0].replace('_', '-')} needs --engine ray")
    if args.workers is not None and args.workers < 1:
        raise UserError(f"--workers {args.workers}: must be at least 1")
    if args.gpus_per_worker is not None and not 0 <= args.gpus_per_worker < float("inf"):
        raise UserError(f"--gpus-per-worker {args.gpus_per_worker:g}: must not be negative")
    return GenerationEngine(args.engine, args.workers, args.gpus_per_worker, args.ray_address)


@contextlib.contextmanager
def open_engine(engine: GenerationEngine, shared: Path, needed: Sequence[Path | None]) -> Iterator[RayWorkers | None]:
    """Connect to the cluster, if one is requested, before anything is loaded; None: this process generates. All machines must see files
    written to `shared`, and must have the `needed` ones. Raises `UserError`."""
    if engine.engine == "local":
        yield None
        return
    from overtone.data_prep.parallel import ray_pool

    there = [*dict.fromkeys(path.absolute() for path in (Path.cwd(), *needed) if path is not None)]
    with cluster_connection.connect(engine.ray_address):
        gpus = float(cluster_checks.has_resource("GPU")) if engine.gpus_per_worker is None else engine.gpus_per_worker
        with ray_pool.claim_workers(engine.workers, gpus, shared.absolute(), there) as remote:
            yield remote


def run_batches(batches: Sequence[T], make: Make[T, R], remote: RayWorkers) -> Iterator[tuple[int, R | Failure]]:
    """Yield (index, result) of each batch as it completes; a batch whose workers died again and again, or that raises, is a `Failure`.

    `make`: as for `ray_pool.run_items`. Raises `UserError` if a worker raised one, and `KeyboardInterrupt` if a stop was requested: batches
    in progress are completed first.
    """
    import torch

    from overtone.data_prep.parallel import ray_pool
    from overtone.data_prep.parallel.process_pool import StopSignal

    with StopSignal() as stop:
        yield from ray_pool.run_items(batches, partial(_open_with_threads, make, torch.get_num_threads()), remote, stop)
        if stop.requested:
            raise KeyboardInterrupt


def _open_with_threads(make: Make[T, R], threads: int, number: int) -> AbstractContextManager[Callable[[T], R]]:
    """On a CPU, the last bits of a sum depend on the number of threads, and a sampled token can depend on them."""
    import torch

    torch.set_num_threads(threads)
    return make(number)


def explain_failures(failures: Sequence[str], count: int, noun: str) -> str:
    """The error of `count` requests, named by `noun`, of the batches that failed for these reasons."""
    reasons = "; ".join(dict.fromkeys(failures))
    return f"{format_count(count, noun)} could not be generated: {reasons}. The others are complete; the same command tries again"
