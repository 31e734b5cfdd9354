"""Measures how full packed rows are: best fit within windows, compared with first fit in order and with padding."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from overtone.finetune.data.batching import Order, micro_batches
from overtone.finetune.data.cached_samples import Ids
from workshop.benchmarks import _table

KINDS = {"instructions": (5.6, 0.8), "conversations": (6.5, 1.0)}
"""Mean and standard deviation of the logarithm of a sample's tokens: a median of 270, and of 665 with a long tail."""
COLUMNS = ("samples", "sequence_length", "window", "best fit", "first fit in order", "padded by length", "padded in order", "best / padded")
NOTE = (
    "Log-normal lengths (medians of 270 and 665 tokens), without longer samples, over one epoch in its shuffled order. Best fit: "
    "`data.packing`, longest first, each into the fullest row of its window that has room for it (`data.window` is 1,024 by default and "
    "4,096 in llm_sft); below 99 % only where a window makes fewer than 50 rows, of which the last is not full. A row is not padded: what "
    "it lacks costs no computation. First fit: as samples come, each into the first row of the window with room. Padded by length: "
    "`data.packing: false`, samples of about one length side by side, tokens by positions with padding. Padded in order: as they come, up "
    "to the same positions, to the longest."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    count = 8192 if flags.quick else 65536
    lines = [line(kind, positions, window, count) for kind in KINDS for positions in (2048, 4096, 8192) for window in (1024, 4096)]
    _table.publish("packing_utilisation", flags, COLUMNS, lines, NOTE)


def line(kind: str, positions: int, window: int, count: int) -> list[object]:
    lengths = lengths_of(kind, positions, count)
    tokens = int(lengths.sum())
    windows = [lengths[start : start + window] for start in range(0, count, window)]
    best, padded = tokens / computed(lengths, positions, window, packing=True), tokens / computed(lengths, positions, window, packing=False)
    first = tokens / (positions * sum(first_fit(each, positions) for each in windows))
    plain = tokens / sum(side_by_side(each, positions) for each in windows)
    shares = [f"{100 * share:.2f} %" for share in (best, first, padded, plain)]
    return [kind, f"{positions:,}", f"{window:,}", *shares, f"{best / plain:.2f}"]


def lengths_of(kind: str, positions: int, count: int) -> Ids:
    drawn = np.random.default_rng(0).lognormal(*KINDS[kind], size=2 * count).astype(np.int64)
    return drawn[(drawn >= 8) & (drawn <= positions)][:count]


def computed(lengths: Ids, positions: int, window: int, packing: bool) -> int:
    """Positions of an epoch's micro-batches, as the loop trains on them; a packed row counts as full."""
    order = Order(seed=1, window=window, micro_tokens=positions, global_batch_tokens=1, packing=packing)
    micros = [micro for number in range(-(-len(lengths) // window)) for micro in micro_batches(order, lengths, 0, number)]
    if packing:
        return positions * len(micros)
    return sum(int(lengths[list(micro.ids)].max()) * len(micro.ids) for micro in micros)


def first_fit(lengths: Ids, capacity: int) -> int:
    """Return how many rows it fills."""
    rooms = np.full(len(lengths), capacity)
    for length in lengths:
        rooms[np.argmax(rooms >= length)] -= length
    return int((rooms < capacity).sum())


def side_by_side(lengths: Ids, largest: int) -> int:
    """Positions of samples as they come, each micro-batch padded to its longest and at most of this size."""
    total = longest = rows = 0
    for length in lengths.tolist():
        grown = max(longest, length)
        if grown * (rows + 1) > largest:
            total, grown, rows = total + longest * rows, length, 0
        longest, rows = grown, rows + 1
    return total + longest * rows


if __name__ == "__main__":
    main()
