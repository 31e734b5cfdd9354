"""Samples into micro-batches: side by side with padding, or end to end without."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from finetune.rows import Ids


def fill(ids: Ids, lengths: Ids, largest: int) -> list[Ids]:
    """Cut rows of ascending length into runs whose padded size (longest × rows) is at most `largest`. A longer row stands alone."""
    groups, start = [], 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or int(lengths[end]) * (end + 1 - start) > largest:
            groups.append(ids[start:end])
            start = end
    return groups


def best_fit(ids: Ids, lengths: Ids, capacity: int) -> list[Ids]:
    """Put rows of ascending length, from the longest down, each into the fullest bin that still has room for it.

    Best-fit decreasing needs at most 11/9 of the fewest bins, and 1 (Johnson et al. 1974). A row above `capacity` stands alone. A bin's
    rows stay in the order of their length, longest first; equal rooms are taken in the order in which the bins were opened.
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
