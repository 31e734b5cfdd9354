"""What each rank last recorded of itself in the run's folder: its process, its step, its memory. Who is killed leaves no other word.

`cache/ranks/rank-00000.json` is written every few seconds. From it the ranks that are left, or the next launch if none is, say what became
of a rank: a process that SIGKILL ends can do nothing any more, and the kernel's out-of-memory killer ends processes so.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from finetune import files

FOLDER = Path("cache") / "ranks"
"""In the run's folder."""
CONTROL_GROUP = Path("/sys/fs/cgroup")
GIB = 2**30


class Signs(BaseModel):
    """Of one rank, at one moment."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    rank: int
    ranks: int
    host: str
    boot: str
    """Which start of the machine it is."""
    process: int
    step: int
    peak_gib: float
    """Host memory, resident."""
    gpu_peak_gib: float | None
    out_of_memory_kills: int | None
    """That the kernel counted, here, when the rank began."""
    time: float = Field(ge=0, lt=1e11)
    """Seconds since 1970."""


def boot_id() -> str:
    """Another one after each start of the machine; empty where the system has none."""
    return _text(Path("/proc/sys/kernel/random/boot_id")).strip()


def out_of_memory_kills() -> int | None:
    """Processes that the kernel's out-of-memory killer has ended: in this process's control group, or else on this machine."""
    for place in (CONTROL_GROUP / "memory.events", Path("/proc/vmstat")):
        for line in _text(place).splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill" and number.strip().isdigit():
                return int(number)
    return None


def host_memory_gib() -> float:
    """What this process may have: of the machine, or less if its control group has a limit."""
    limit = _text(CONTROL_GROUP / "memory.max").strip()
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(int(limit) if limit.isdigit() else physical, physical) / GIB


def free_host_memory() -> int:
    """Bytes that processes may still take, by the machine and by this process's control group; files that are only cached count as free."""
    lines = [line.split() for line in _text(Path("/proc/meminfo")).splitlines()]
    machine = next((int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"), 0)
    limit, used = (_text(CONTROL_GROUP / name).strip() for name in ("memory.max", "memory.current"))
    if not (limit.isdigit() and used.isdigit()):
        return machine
    counts = (line.split() for line in _text(CONTROL_GROUP / "memory.stat").splitlines())
    cached = next((int(words[1]) for words in counts if words[0] == "inactive_file"), 0)
    return max(0, min(machine, int(limit) - int(used) + cached))


def peak_gib() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def record(run_dir: Path, signs: Signs) -> None:
    files.write_volatile(path_of(run_dir, signs.rank), signs.model_dump_json().encode())


def path_of(run_dir: Path, rank: int) -> Path:
    return run_dir / FOLDER / f"rank-{rank:05d}.json"


def read(run_dir: Path, rank: int) -> Signs | None:
    """What a rank recorded last; None if that is nothing, or cannot be read."""
    with contextlib.suppress(OSError, ValidationError):
        return Signs.model_validate_json(path_of(run_dir, rank).read_bytes())
    return None


def read_all(run_dir: Path) -> list[Signs]:
    """Of all ranks of the last launch, by rank."""
    found = (read(run_dir, int(path.stem.removeprefix("rank-"))) for path in sorted((run_dir / FOLDER).glob("rank-[0-9]*.json")))
    return [signs for signs in found if signs is not None]


def cause_of_kill(signs: Signs) -> str:
    """Why a process that left no word was probably killed, and its memory. May be called on any machine, at any later time."""
    when = time.strftime("%F %T", time.localtime(signs.time))
    gpu = "" if signs.gpu_peak_gib is None else f", of GPU memory {signs.gpu_peak_gib:.1f} GiB"
    namesake = signs.host == platform.node()
    here = namesake and signs.boot == boot_id()
    most = f" of {host_memory_gib():.1f} GiB" if here else ""
    peak = f"its peak of host memory was {signs.peak_gib:.1f} GiB{most}{gpu} when last recorded, {when}"
    if namesake and not here:
        return f"likely out of memory, unless {signs.host} was started again since, is another machine, or somebody sent the signal; {peak}"
    now = out_of_memory_kills() if here else None
    if now is not None and signs.out_of_memory_kills is not None and now > signs.out_of_memory_kills:
        return f"out of memory: the kernel's out-of-memory killer has struck on {signs.host} since the run began; {peak}"
    return f"likely out of memory, unless somebody sent the signal; {peak}"


def account_of_killed(run_dir: Path) -> str | None:
    """What may have become of a launch that left no word, none of its ranks having been left to write one. None if there was none."""
    found = read_all(run_dir)
    if not found:
        return None
    fullest = max(found, key=lambda signs: signs.peak_gib)
    whom = "its process" if fullest.ranks == 1 else f"all of its {fullest.ranks} processes"
    return (
        f"the last launch in {run_dir} left no exit.json: {whom} ended without a word (killed, crashed, or the terminal closed) "
        f"after at least step {max(signs.step for signs in found)}; rank {fullest.rank} on {fullest.host}, if it was killed: "
        f"{cause_of_kill(fullest)}"
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
