"""Status records of each rank in the run's folder (process, step, peak memory), to explain why a killed process has ended.

`cache/ranks/rank-00000.json` is written every few seconds. With it the remaining ranks, or the next launch, report what probably happened
to a rank: a process killed by SIGKILL, as by the kernel's out-of-memory killer, cannot leave a message.
"""

from __future__ import annotations

import contextlib
import platform
import resource
import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from finetune.hardware.host_memory import out_of_memory_kills
from finetune.storage import files

FOLDER = Path("cache") / "ranks"
"""In the run's folder."""
GIB = 2**30


class RankStatus(BaseModel):
    """Status of one rank at one time."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    rank: int
    ranks: int
    host: str
    boot: str
    """Boot id of the machine."""
    process: int
    step: int
    peak_gib: float
    """Peak of resident host memory."""
    gpu_peak_gib: float | None
    out_of_memory_kills: int | None
    """The kernel's count on this machine when the rank started."""
    host_memory_gib: float | None = None
    """Memory of the machine, or the limit of this rank's control group; None in records of earlier versions."""
    time: float = Field(ge=0, lt=1e11)
    """Seconds since 1970."""


def boot_id() -> str:
    """Id of the machine's current boot; empty if the system has none."""
    return _read_text(Path("/proc/sys/kernel/random/boot_id")).strip()


def peak_gib() -> float:
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def write_status(run_dir: Path, signs: RankStatus) -> None:
    files.write_volatile(status_path(run_dir, signs.rank), signs.model_dump_json().encode())


def status_path(run_dir: Path, rank: int) -> Path:
    return run_dir / FOLDER / f"rank-{rank:05d}.json"


def read_status(run_dir: Path, rank: int) -> RankStatus | None:
    """Last record of a rank; None if it is missing or cannot be read."""
    with contextlib.suppress(OSError, ValidationError):
        return RankStatus.model_validate_json(status_path(run_dir, rank).read_bytes())
    return None


def read_all_statuses(run_dir: Path) -> list[RankStatus]:
    """Records of all ranks of the last launch, by rank."""
    found = (read_status(run_dir, int(path.stem.removeprefix("rank-"))) for path in sorted((run_dir / FOLDER).glob("rank-[0-9]*.json")))
    return [signs for signs in found if signs is not None]


def explain_kill(signs: RankStatus) -> str:
    """The probable reason why a process was killed, and its peak memory. Works on any machine, at any later time."""
    when = time.strftime("%F %T", time.localtime(signs.time))
    gpu = "" if signs.gpu_peak_gib is None else f", of GPU memory {signs.gpu_peak_gib:.1f} GiB"
    namesake = signs.host == platform.node()
    here = namesake and signs.boot == boot_id()
    most = "" if signs.host_memory_gib is None else f" of {signs.host_memory_gib:.1f} GiB"
    peak = f"its peak of host memory was {signs.peak_gib:.1f} GiB{most}{gpu} when last recorded, {when}"
    if namesake and not here:
        return f"likely out of memory, unless {signs.host} was started again since, is another machine, or somebody sent the signal; {peak}"
    now = out_of_memory_kills() if here else None
    if now is not None and signs.out_of_memory_kills is not None and now > signs.out_of_memory_kills:
        return f"out of memory: the kernel's out-of-memory killer has ended a process on {signs.host} since the run began; {peak}"
    return f"likely out of memory, unless somebody sent the signal; {peak}"


def describe_killed_launch(run_dir: Path) -> str | None:
    """Message about a previous launch that ended without writing exit.json; None if there are no records."""
    found = read_all_statuses(run_dir)
    if not found:
        return None
    fullest = max(found, key=lambda signs: signs.peak_gib)
    whom = "its process" if fullest.ranks == 1 else f"all of its {fullest.ranks} processes"
    return (
        f"the last launch in {run_dir} left no exit.json: {whom} ended without a message (killed, crashed, or the terminal closed) "
        f"after at least step {max(signs.step for signs in found)}; rank {fullest.rank} on {fullest.host}, if it was killed: "
        f"{explain_kill(fullest)}"
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
