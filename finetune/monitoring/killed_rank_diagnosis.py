"""Explains why a killed process has ended, from the last status record of its rank.

The remaining ranks, or the next launch, report it: a process killed by SIGKILL, as by the kernel's out-of-memory killer, cannot leave a
message.
"""

from __future__ import annotations

import platform
import time
from pathlib import Path

from overtone.finetune.hardware.host_memory import out_of_memory_kills
from overtone.finetune.monitoring.rank_status_records import RankStatus, boot_id, read_all_statuses


def explain_kill(signs: RankStatus) -> str:
    """The probable reason why a process was killed, and its peak memory. Works on any machine, at any later time."""
    when = time.strftime("%F %T", time.localtime(signs.time))
    gpu = "" if signs.gpu_peak_gib is None else f", of GPU memory {signs.gpu_peak_gib:.1f} GiB"
    namesake = signs.host == platform.node()
    here = namesake and signs.boot == boot_id()
    peak = f"its peak of host memory was {signs.peak_gib:.1f} GiB of {signs.host_memory_gib:.1f} GiB{gpu} when last recorded, {when}"
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
