"""Time an asynchronous save's hold on the loop beside a plain copy of the same state and torch.save of it. Launched by save_blocking.py.

usage (through accelerate launch): _blocking_of_ranks.py FOLDER MEBIBYTES…; leaves FOLDER/blocking-N.json
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from overtone.finetune.checkpointing import checkpoint, rank_shards
from overtone.finetune.distributed import process_group
from overtone.finetune.distributed.process_group import World
from overtone.finetune.storage import files

WRITTEN = 1024
"""Mebibytes that are saved of each size, in as many rounds as that takes, but not fewer than seven."""
FIRSTS = 5
"""First saves of each size, each of a saver of its own."""
PIECES = 32
"""Tensors that the state consists of."""
CLOCKS = {"wall": time.perf_counter, "processor": time.thread_time}

Seconds = dict[str, float]
"""Seconds of one call, by each clock."""


def measure(joined: World, folder: Path, mebibytes: int) -> dict[str, Any]:
    """Return the seconds of each round of each act, by each clock, of the slowest rank. Collective: call on every rank."""
    state = {f"piece{number}": torch.ones(mebibytes * 2**20 // 4 // PIECES) for number in range(PIECES)}
    rounds: dict[str, list[Seconds]] = {"first copy": [], "first save": [], "copy": [], "save": [], "torch.save": []}
    own = rank_shards.select_own_parts(state, joined.rank, joined.size)
    for number in range(FIRSTS):
        saver = checkpoint.Saver(joined, folder / str(number), 2, asynchronous=True)
        rounds["first copy"].append(time_on_all_ranks(joined, lambda: {name: part.value.clone() for name, part in own.items()}))
        rounds["first save"].append(time_on_all_ranks(joined, lambda saver=saver: saver.begin(0, state, {}, "")))
        finish(saver, folder / str(number), joined)
    saver = checkpoint.Saver(joined, folder, 2, asynchronous=True)
    kept = {name: part.value.clone() for name, part in own.items()}
    for step in range(max(7, WRITTEN // mebibytes) + 1):
        rounds["copy"].append(time_on_all_ranks(joined, lambda: [kept[name].copy_(part.value) for name, part in own.items()]))
        rounds["save"].append(time_on_all_ranks(joined, lambda step=step: saver.begin(step, state, {}, "")))
        saver.finish()
        if joined.is_main:
            rounds["torch.save"].append(time_call(lambda: torch.save(state, folder / "whole.pt")))
            files.discard(folder / "whole.pt")
    finish(saver, folder, joined)
    for name in ("copy", "save", "torch.save"):  # the first of these saves is no later one
        del rounds[name][:1]
    slowest = {
        name: [{clock: max(each[clock] for each in of_ranks) for clock in CLOCKS} for of_ranks in zip(*shared, strict=True)]
        for name in rounds
        if (shared := [each for each in process_group.gather_from_ranks(joined, rounds[name]) if each])
    }
    return {"mebibytes": mebibytes, "ranks": joined.size, "rounds": slowest}


def finish(saver: checkpoint.Saver, folder: Path, joined: World) -> None:
    """End the save in flight, give the buffers back, and make room on the disk. Collective: call on every rank."""
    saver.finish()
    saver.close()
    process_group.sum_over_ranks(joined, [0.0])
    if joined.is_main:
        files.discard(checkpoint.folder_of(folder))


def time_on_all_ranks(joined: World, act: Callable[[], object]) -> Seconds:
    """Seconds of what all ranks begin at once. Collective: call on every rank."""
    process_group.sum_over_ranks(joined, [0.0])
    return time_call(act)


def time_call(act: Callable[[], object]) -> Seconds:
    """Return the seconds of one call: on the wall, and on a processor for the thread that trains."""
    began = {name: clock() for name, clock in CLOCKS.items()}
    act()
    return {name: clock() - began[name] for name, clock in CLOCKS.items()}


def main() -> None:
    torch.set_num_threads(1)
    folder, sizes = Path(sys.argv[1]), [int(word) for word in sys.argv[2:]]
    joined = process_group.join((), folder)
    found = [measure(joined, folder / f"{joined.size}-{size}", size) for size in sizes]
    if joined.is_main:
        files.write_json(folder / f"blocking-{joined.size}.json", found)
    process_group.leave()


if __name__ == "__main__":
    main()
