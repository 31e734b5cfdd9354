"""Time an asynchronous save's hold on the loop beside a plain copy of the same state and torch.save of it. Launched by save_blocking.py.

usage (through accelerate launch): _blocking_of_ranks.py FOLDER MEBIBYTES…; leaves FOLDER/blocking-N.json
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import _timing
from finetune import checkpoint, files, shards, world
from finetune.world import World

WRITTEN = 4096
"""Mebibytes that are saved of each size, in as many rounds as that takes, but not fewer than seven."""
PIECES = 32
"""Tensors that the state consists of."""


def measure(joined: World, folder: Path, mebibytes: int) -> dict[str, float]:
    """Median seconds of both, in turns; the slowest rank's. Collective: call on every rank."""
    state = {f"piece{number}": torch.ones(mebibytes * 2**20 // 4 // PIECES) for number in range(PIECES)}
    own = shards.own_parts(state, joined.rank, joined.size)
    saver = checkpoint.Saver(joined, folder, 2, asynchronous=True)
    seconds: dict[str, list[float]] = {"copy": [], "save": [], "torch.save": []}
    for step in range(max(7, WRITTEN // mebibytes) + 1):
        seconds["copy"].append(together(joined, lambda: {name: part.value.clone() for name, part in own.items()}))
        seconds["save"].append(together(joined, lambda step=step: saver.begin(step, state, {}, "")))
        saver.finish()
        if joined.is_main:
            seconds["torch.save"].append(_timing.taken(lambda: torch.save(state, folder / "whole.pt"), time.perf_counter))
            files.discard(folder / "whole.pt")
    saver.close()
    medians = [median(each[1:]) if each else 0.0 for each in seconds.values()]
    slowest = [max(each) for each in zip(*world.gather(joined, medians), strict=True)]
    return {"mebibytes": mebibytes, "ranks": joined.size, **dict(zip(seconds, slowest, strict=True))}


def together(joined: World, act: Callable[[], object]) -> float:
    """Seconds of what all ranks begin at once. Collective: call on every rank."""
    world.sums(joined, [0.0])
    return _timing.taken(act, time.perf_counter)


def main() -> None:
    torch.set_num_threads(1)
    folder, sizes = Path(sys.argv[1]), [int(word) for word in sys.argv[2:]]
    joined = world.join((), folder)
    found = [measure(joined, folder / f"{joined.size}-{size}", size) for size in sizes]
    if joined.is_main:
        files.write_json(folder / f"blocking-{joined.size}.json", found)
    world.leave()


if __name__ == "__main__":
    main()
