"""Host memory that this process may use: that of the machine, within the limits of its control groups (containers, Slurm jobs)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from overtone.finetune.storage.text_lines import split_lines

CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
GIB = 2**30


@dataclass(frozen=True)
class Version:
    """File names of one version of control groups. https://docs.kernel.org/admin-guide/cgroup-v2.html, …/cgroup-v1/memory.html"""

    mount: str
    limit: str
    used: str
    cached: str
    """Key in memory.stat: bytes that the kernel gives up before it kills a process."""


V1 = Version("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = Version("", "memory.max", "memory.current", "inactive_file")


def host_memory() -> int:
    """Return the bytes of the machine's memory, or the lowest limit of this process's control groups if that is smaller."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _limits())])


def free_host_memory() -> int:
    """Free bytes of the machine and of each control group with a limit, whichever is fewest; cached files count as free."""
    return max(0, min([psutil.virtual_memory().available, *(limit - used for limit, used in _limits())]))


def out_of_memory_kills() -> int | None:
    """Return the number of processes killed by the kernel's out-of-memory killer: of this container if it counts them, otherwise of this
    machine."""
    for place in (CONTROL_GROUPS / "memory.events", Path("/proc/vmstat")):
        kills = _read_counter(place, "oom_kill")
        if kills is not None:
            return kills
    return None


def _limits() -> Iterator[tuple[int, int]]:
    """Limit and use, in bytes, of each control group of this process that has a limit."""
    for version, group in _groups():
        limit, used = (_read_text(group / name).strip() for name in (version.limit, version.used))
        if limit.isdigit() and used.isdigit():
            yield int(limit), max(0, int(used) - (_read_counter(group / "memory.stat", version.cached) or 0))


def _groups() -> Iterator[tuple[Version, Path]]:
    """This process's group and all groups around it, whose limits hold as well. Inside a container the path may be that on its host: then
    only the last one, the root, exists, and has the container's limit.
    """
    for line in split_lines(_read_text(OWN_GROUPS)):
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            version = V1 if controllers else V2
            own = PurePosixPath(path.lstrip("/"))
            yield from ((version, CONTROL_GROUPS / version.mount / group) for group in (own, *own.parents) if ".." not in group.parts)


def _read_counter(path: Path, name: str) -> int | None:
    """A number in the kernel's lines of `name number`."""
    words = (line.split() for line in split_lines(_read_text(path)))
    return next((int(number) for key, number in words if key == name), None)


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
