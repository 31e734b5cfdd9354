"""A Ray cluster as a run needs it: reached, large enough, and seeing the same files from each of its machines.

All of it is known within seconds, before anything is loaded anywhere.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import finetune
from finetune import files
from finetune.errors import UserError

REACH_SECONDS = 5.0
"""Within which a machine answers, or is taken for absent: Ray's own client would try for minutes."""
LOOK_SECONDS = 60.0
"""Within which each machine has started a process and looked for a few files."""


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """While open, this process drives the cluster at `address`: HOST:PORT, auto (the one that runs here) or local (a new one, for as long
    as this lasts). By default that of RAY_ADDRESS, or the one that runs here, or a new one. Raises `UserError` if there is none."""
    check_installed()
    address = address or os.environ.get("RAY_ADDRESS")
    check_address(address)
    import ray

    try:
        ray.init(address, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError) as error:
        raise UserError(f"no Ray cluster to work on at {address or 'this machine'}: {error}; `ray start --head` starts one") from None
    try:
        yield
    finally:
        ray.shutdown()


def check_installed() -> None:
    if importlib.util.find_spec("ray") is None:
        raise UserError("Ray is not installed; `pip install 'overtone[ray]'`, on every machine of the cluster")


def check_address(address: str | None) -> None:
    """Refuse what cannot be reached. Ray's names for places (auto, local) pass."""
    if address in (None, "", "auto", "local"):
        return
    assert address is not None
    if address.startswith("ray://"):
        raise UserError(f"{address}: Ray's client cannot drive this; run the command on a machine of the cluster, or with `ray job submit`")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"Ray's address {address!r} is not HOST:PORT (6379 is the usual port), auto or local")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except OSError as error:
        raise UserError(f"no Ray cluster at {address}: {error}; `ray start --head` on that machine starts one") from None


def require(workers: int, each: Mapping[str, float], flag: str) -> None:
    """Refuse `workers` that each take `each` (CPU, GPU) and are more than the cluster could hold, even if it did nothing else."""
    import ray

    there = ray.cluster_resources()
    for resource, amount in each.items():
        if workers * amount > there.get(resource, 0.0):
            raise UserError(
                f"{flag}: {workers} workers with {amount:g} {resource} each are asked for, and the cluster has "
                f"{there.get(resource, 0.0):g} {resource} on {len(machines())} machine(s); ask for fewer, or add machines"
            )


def room_for(each: Mapping[str, float]) -> int:
    """How many workers that each take `each` the cluster could hold, if it did nothing else."""
    import ray

    there = ray.cluster_resources()
    return min(int(there.get(resource, 0.0) / amount) for resource, amount in each.items())


def has(resource: str) -> bool:
    """Whether any machine of the cluster offers `resource`, such as GPU."""
    import ray

    return bool(ray.cluster_resources().get(resource, 0.0))


def machines() -> list[dict[str, Any]]:
    """Those that are there now."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def check_same_files(shared: Path, needed: Sequence[Path]) -> None:
    """Refuse a cluster in which some machine does not see what this process writes to `shared`, or has not the files that are `needed`,
    or runs another version of this package."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    mark = files.make_folder(shared) / f".seen-{secrets.token_hex(8)}"
    files.write_text(mark, platform.node())
    look = ray.remote(look_around)
    try:
        asked = {}
        for node in machines():
            place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            sent = look.options(num_cpus=0, scheduling_strategy=place, max_retries=0).remote([str(path) for path in (mark, *needed)])
            asked[f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"] = sent
        for machine, answer in asked.items():
            _judge(machine, _answer(machine, answer), mark)
    finally:
        files.discard(mark)


def look_around(paths: list[str]) -> dict[str, Any]:
    """On a machine of the cluster: which of these it does not see, and what it runs."""
    return {"missing": [path for path in paths if not Path(path).exists()], "version": finetune.__version__}


def _answer(machine: str, answer: Any) -> dict[str, Any]:
    import ray

    try:
        return ray.get(answer, timeout=LOOK_SECONDS)
    except ray.exceptions.GetTimeoutError:
        raise UserError(f"{machine} is in the cluster, but starts no process within {LOOK_SECONDS:.0f} s; see `ray status`") from None
    except ray.exceptions.RayError as error:
        last = str(error).strip().splitlines()[-1]
        raise UserError(f"{machine} cannot run this package: {last}; it needs the same environment as this machine") from None


def _judge(machine: str, seen: dict[str, Any], mark: Path) -> None:
    if str(mark) in seen["missing"]:
        raise UserError(
            f"{machine} does not see what {platform.node()} writes to {mark.parent}; give a folder that all machines share (--storage)"
        )
    if seen["missing"]:
        raise UserError(
            f"{machine} does not have {', '.join(seen['missing'])}, which {platform.node()} has; all machines need the same files"
        )
    if seen["version"] != finetune.__version__:
        raise UserError(f"{machine} has version {seen['version']} of this package, {platform.node()} has {finetune.__version__}")
