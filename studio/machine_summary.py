"""Describes what this machine can train, in one line: GPU, memory, disk. Imports no torch."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from overtone.finetune.cli.doctor import run_tool
from overtone.finetune.errors import format_count
from overtone.finetune.hardware.host_memory import GIB, free_host_memory, host_memory

QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")


def describe_machine(place: Path) -> str:
    """Return the GPUs by the driver, or the cores without any; memory, and the free disk of `place`."""
    free, total = free_host_memory() / GIB, host_memory() / GIB
    return f"{describe_gpus()} · {total:.0f} GiB memory, {free:.0f} free · {shutil.disk_usage(place).free / GIB:.0f} GiB disk free"


def describe_gpus() -> str:
    """Return the GPUs and their memory, and what fits into it by rule of thumb: `plan` computes it for a model."""
    found = list[tuple[str, float]]()
    for line in run_tool(*QUERY).split("\n"):
        name, _, memory = line.rpartition(",")
        if name and memory.strip().isdecimal():
            found.append((name.strip(), int(memory) / 1024))
    if not found:
        cores = len(os.sched_getaffinity(0))
        return f"no GPU: {format_count(cores, 'core')} train the small demo models"
    smallest, size = min(found, key=lambda one: one[1])
    return f"{format_count(len(found), 'GPU')}: {smallest}, {size:.0f} GiB"
