"""Keyed permutations: a shuffle of any size that is computed position by position, so that no order is ever stored."""

from __future__ import annotations

import hashlib
import json

import numpy as np
from numpy.typing import NDArray

from overtone.finetune.data.cached_samples import Ids


def permute(positions: Ids, size: int, key: int) -> Ids:
    """Return the image of each position under a keyed permutation of range(size): a four-round Feistel network with cycle walking.

    Needs no memory, and the same time for any position (Luby & Rackoff 1988; cycle walking: Black & Rogaway 2002).
    """
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    result = _feistel(positions.astype(np.uint64), half, key)
    while (outside := result >= size).any():
        result[outside] = _feistel(result[outside], half, key)
    return result.astype(np.int64)


def _feistel(values: NDArray[np.uint64], half: int, key: int) -> NDArray[np.uint64]:
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    for turn in range(4):
        left, right = right, left ^ (_mix(right + np.uint64(derive_key(key, turn))) & mask)
    return (left << shift) | right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64 (Steele, Lea & Flood 2014): every input bit affects every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def derive_key(*parts: int) -> int:
    """Return a 63-bit key from integers."""
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:8], "big") >> 1
