"""Checks of a Ray cluster before a start: resources for the workers, and the same files and package version on every machine.

All checks take seconds, and run before anything is loaded. They need a connection (`cluster_connection.connect`).
"""

from __future__ import annotations

import platform
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.version import __version__

LOOK_SECONDS = 60.0
"""Timeout for each machine to start a process and check a few files."""


def require_resources(workers: int, each: Mapping[str, float], flag: str) -> None:
    """Raises `UserError` if the cluster, even if idle, has too few resources for `workers` that need `each` (CPU, GPU)."""
    import ray

    there = ray.cluster_resources()
    for resource, amount in each.items():
        if workers * amount > there.get(resource, 0.0):
            raise UserError(
                f"{flag}: {workers} workers with {amount:g} {resource} each were requested, and the cluster has "
                f"{there.get(resource, 0.0):g} {resource} on {len(list_machines())} machine(s); request fewer, or add machines"
            )


def count_room(each: Mapping[str, float]) -> int:
    """Return the number of workers, each needing `each`, that fit on the cluster when it is idle."""
    import ray

    there = ray.cluster_resources()
    return min(int(there.get(resource, 0.0) / amount) for resource, amount in each.items())


def has_resource(resource: str) -> bool:
    """Return whether any machine of the cluster has `resource`, such as GPU."""
    import ray

    return bool(ray.cluster_resources().get(resource, 0.0))


def choose_worker_resources(gpu: bool | None) -> dict[str, float]:
    """Return what each worker takes: a GPU, or a CPU. `gpu` None: a GPU if the cluster has any."""
    return {"GPU": 1.0} if (has_resource("GPU") if gpu is None else gpu) else {"CPU": 1.0}


def list_machines() -> list[dict[str, Any]]:
    """Return the machines that are alive."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def check_same_files(shared: Path, needed: Sequence[Path]) -> None:
    """Raises `UserError` if a machine of the cluster does not see files that this process writes to `shared`, lacks one of the files in
    `needed`, or has another version of this package."""
    mark = files.make_folder(shared) / f".seen-{secrets.token_hex(8)}"
    files.write_text(mark, platform.node())
    try:
        check_machines([*needed, mark], mark)
    finally:
        files.discard(mark)


def check_machines(needed: Sequence[Path], mark: Path | None = None) -> None:
    """Raises `UserError` if a machine of the cluster lacks one of the files in `needed`, or has another version of this package. `mark`:
    the one of them that this process has just written to a shared folder."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look, results = ray.remote(inspect_machine), {}
    for node in list_machines():
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        sent = look.options(num_cpus=0, scheduling_strategy=place, max_retries=0).remote([str(path) for path in needed])
        results[f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"] = sent
    for machine, result in results.items():
        _check_machine(machine, _fetch_result(machine, result), mark)


def inspect_machine(paths: list[str]) -> dict[str, Any]:
    """Return the paths that a machine of the cluster does not see, and its version of this package. Runs on that machine."""
    return {"missing": [path for path in paths if not Path(path).exists()], "version": __version__}


def _fetch_result(machine: str, result: Any) -> dict[str, Any]:
    import ray

    try:
        return ray.get(result, timeout=LOOK_SECONDS)
    except ray.exceptions.GetTimeoutError:
        raise UserError(f"{machine} is in the cluster, but started no process within {LOOK_SECONDS:.0f} s; see `ray status`") from None
    except ray.exceptions.RayError as error:
        last = str(error).strip().rpartition("\n")[2]
        raise UserError(f"{machine} cannot run this package: {last}; it needs the same environment as this machine") from None


def _check_machine(machine: str, seen: dict[str, Any], mark: Path | None) -> None:
    if mark is not None and str(mark) in seen["missing"]:
        raise UserError(
            f"{machine} does not see the files that {platform.node()} writes to {mark.parent}; "
            "choose a folder that all machines share (--storage)"
        )
    if seen["missing"]:
        raise UserError(
            f"{machine} does not have {', '.join(seen['missing'])}, which {platform.node()} has; all machines need the same files"
        )
    if seen["version"] != __version__:
        raise UserError(f"{machine} has version {seen['version']} of this package, {platform.node()} has {__version__}")
