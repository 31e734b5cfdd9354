"""Finds images that are the same except for size, compression or small changes of colour.

The hash has the signs of the lowest frequencies of a small gray copy, relative to their median (Zauner 2010, Implementation and
Benchmarking of Perceptual Image Hash Functions). Different images can have similar hashes, above all simple ones, so the gray copies of
each candidate pair are compared too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE, FREQUENCIES = 32, 8
"""Pixels of the side of the gray copy, and lowest frequencies of it in each direction: 64 bits."""
MOST_BITS = 7
"""Largest number of different bits of two copies of one image."""
MOST_DIFFERENCE = 4.0
"""Largest mean difference of the pixels of two gray copies of one image, of 255 levels."""
THUMBNAIL = 16
"""Pixels of the side of the gray copies that are compared."""


def compute_hash(image: Image) -> int:
    """Return the hash of an RGB image, 64 bits."""
    from PIL.Image import Resampling

    gray = np.asarray(image.convert("L").resize((SIDE, SIDE), Resampling.BOX), dtype=np.float64)
    basis = np.cos(np.pi / SIDE * (np.arange(SIDE) + 0.5) * np.arange(FREQUENCIES)[:, None])  # DCT-II
    found = (basis @ gray @ basis.T).ravel()
    # The first is the brightness. Rounded, as noise of the last digit would decide the bits of an even image.
    found = np.round(found, 3)
    bits = found > np.median(found[1:])
    return int(sum(1 << place for place, bit in enumerate(bits.tolist()) if bit))


def make_gray_copy(image: Image) -> bytes:
    """Return `THUMBNAIL` × `THUMBNAIL` gray pixels of an RGB image."""
    from PIL.Image import Resampling

    return image.convert("L").resize((THUMBNAIL, THUMBNAIL), Resampling.BOX).tobytes()


def find_duplicates(hashes: Sequence[int], copies: Sequence[bytes]) -> list[list[int]]:
    """Return the groups of numbers of equal images, each in ascending order; images without an equal one are in none."""
    leader = list(range(len(hashes)))

    def find_leader(number: int) -> int:
        while leader[number] != number:
            leader[number] = leader[leader[number]]
            number = leader[number]
        return number

    for one, other in find_pairs(hashes, copies):
        first, second = sorted((find_leader(one), find_leader(other)))
        leader[second] = first
    groups: dict[int, list[int]] = defaultdict(list)
    for number in range(len(hashes)):
        groups[find_leader(number)].append(number)
    return [group for group in groups.values() if len(group) > 1]


def find_pairs(hashes: Sequence[int], copies: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of equal images. Two hashes that differ in at most `MOST_BITS` bits are equal in one of `MOST_BITS` + 1 parts, so
    only hashes with an equal part are compared; of several images with equal bytes, each is compared with the first alone."""
    if not hashes:
        return
    pixels = np.frombuffer(b"".join(copies), np.uint8).reshape(len(copies), -1).astype(np.int16)
    codes = np.array(hashes, dtype=np.uint64)
    seen: dict[tuple[int, bytes], int] = {}
    distinct = []
    for number, key in enumerate(zip(hashes, copies, strict=True)):
        if (first := seen.setdefault(key, number)) != number:
            yield first, number
        else:
            distinct.append(number)
    bits = 64 // (MOST_BITS + 1)
    for part in range(MOST_BITS + 1):
        buckets: dict[int, list[int]] = defaultdict(list)
        for number in distinct:
            buckets[(hashes[number] >> (part * bits)) & ((1 << bits) - 1)].append(number)
        for bucket in buckets.values():
            yield from _compare(np.array(bucket), codes, pixels)


def _compare(bucket: NDArray[np.int64], codes: NDArray[np.uint64], pixels: NDArray[np.int16]) -> Iterator[tuple[int, int]]:
    for place, number in enumerate(bucket[:-1].tolist()):
        others = bucket[place + 1 :]
        near = others[np.bitwise_count(codes[others] ^ codes[number]) <= MOST_BITS]
        same = near[np.abs(pixels[near] - pixels[number]).mean(axis=1) <= MOST_DIFFERENCE]
        yield from ((number, other) for other in same.tolist())
