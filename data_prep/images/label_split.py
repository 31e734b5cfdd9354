"""Stratified split of labelled images: the same share of each label goes to validation."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence


def choose_validation(images: Sequence[tuple[str, str]], share: float) -> set[int]:
    """Return the numbers of the images that go to validation. `images`: (digest, label) of each.

    Of each label with two or more images, the share is chosen, rounded, but at least one image and never all; the only image of a label is
    for training. The choice depends on the digests alone, so that new images move few others.
    """
    by_label: dict[str, list[int]] = defaultdict(list)
    for number, (_, label) in enumerate(images):
        by_label[label].append(number)
    chosen: set[int] = set()
    for numbers in by_label.values() if share > 0 else ():
        count = min(len(numbers) - 1, max(1, round(share * len(numbers))))
        chosen.update(sorted(numbers, key=lambda number: hashlib.sha256(images[number][0].encode()).digest())[:count])
    return chosen
