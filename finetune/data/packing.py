"""Grouping of samples into micro-batches: buckets of similar length for padding, or best-fit packing."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from overtone.finetune.data.cached_samples import Ids


def fill(ids: Ids, lengths: Ids, largest: int) -> list[Ids]:
    """Divide rows of ascending length into groups whose padded size (longest × rows) is at most `largest`. A longer row gets its own
    group."""
    groups, start = [], 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or int(lengths[end]) * (end + 1 - start) > largest:
            groups.append(ids[start:end])
            start = end
    return groups


def best_fit(ids: Ids, lengths: Ids, capacity: int) -> list[Ids]:
    """Pack rows of ascending length, the longest first, each into the fullest bin that still has room for it.

    Best-fit decreasing needs at most 11/9 · OPT + 1 bins (Johnson et al. 1974). A row above `capacity` gets its own bin. The rows of a bin
    are ordered by length, longest first; among bins with equal room, the oldest is used.
    """
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (room left, bin), ascending, so that the tightest fit is found by bisection
    for row, length in zip(ids[::-1].tolist(), lengths[::-1].tolist(), strict=True):
        fits = bisect_left(rooms, (length, -1))
        if fits == len(rooms):
            bins.append([row])
            insort(rooms, (max(0, capacity - length), len(bins) - 1))
        else:
            room, number = rooms.pop(fits)
            bins[number].append(row)
            insort(rooms, (room - length, number))
    return [np.array(rows, dtype=np.int64) for rows in bins]
