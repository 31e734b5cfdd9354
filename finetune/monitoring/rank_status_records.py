"""Status records of each rank in the run's folder: its process, step, and peak memory, written every few seconds.

The records are `cache/ranks/rank-00000.json` and so on.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from overtone.finetune.storage import files, input_files

FOLDER = Path("cache") / "ranks"
"""Path of the records in the run's folder."""
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
    host_memory_gib: float
    """Memory of the machine, or the limit of this rank's control group."""
    time: float = Field(ge=0, lt=1e11)
    """Seconds since 1970."""
    collectives: int = 0
    """Number of collectives that the rank has started."""
    stalled_seconds: float = 0.0
    """Time since it started the last one."""
    place: str = ""
    """File, line and function in which its main thread is."""


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
        return RankStatus.model_validate_json(input_files.read_bytes(status_path(run_dir, rank)))
    return None


def read_all_statuses(run_dir: Path) -> list[RankStatus]:
    """Records of all ranks of the last launch, by rank."""
    found = (read_status(run_dir, int(path.stem.removeprefix("rank-"))) for path in sorted((run_dir / FOLDER).glob("rank-[0-9]*.json")))
    return [signs for signs in found if signs is not None]


def _read_text(path: Path) -> str:
    try:
        return input_files.read_text(path)
    except OSError:
        return ""
