"""Comparison of a decode loop with stock generation, for the benchmarks of the recipes that generate speech codes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from workshop.benchmarks import _table, _timing

TEXT = "She counted the boats in the harbour and wrote the number down."
Codes = list[list[list[int]]]
"""[texts, frames, codebooks]."""
Ways = Mapping[str, Callable[[], Codes]]
"""`stock` and `here`."""


def publish_comparison(
    name: str,
    about: str | None,
    columns: Sequence[str],
    note: str,
    sizes: Sequence[tuple[int, int]],
    frames: int,
    make_ways: Callable[[Path, int, int, int], Ways],
) -> None:
    """Compare both ways on one thread for each size (the model's, texts at once), of which --quick takes the first, and publish the table.

    `make_ways(folder, size, texts, frames)` builds the model of a size in `folder` if it is not there. `{frames}` in `note` is replaced.
    """
    flags = _table.read_flags(about)
    torch.set_num_threads(1)
    sizes, frames, rounds = (sizes[:1], 4, 1) if flags.quick else (sizes, frames, 5)
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            ["tiny", size, texts, *compare(make_ways(Path(folder) / str(size), size, texts, frames), texts * frames, rounds)]
            for size, texts in sizes
        ]
    _table.publish(name, flags, columns, rows, note.format(frames=frames))


def compare(ways: Ways, frames: int, rounds: int) -> list[str]:
    """Frames per second of `stock` and of `here`, and their ratio, as cells. `frames`: of all texts together. Exits if the codes differ."""
    if ways["stock"]() != ways["here"]():
        raise SystemExit("the two ways generate different codes, so their times are not comparable")
    taken = _timing.medians(ways, rounds)
    return [*(f"{frames / taken[way]:.1f}" for way in ("stock", "here")), f"{taken['stock'] / taken['here']:.1f}"]
