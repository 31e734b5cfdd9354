"""Copies of an image are found, and different images are not taken for copies."""

from __future__ import annotations

import itertools
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from overtone.data_prep.images.perceptual_hash import MOST_BITS, compute_hash, find_duplicates, find_pairs, make_gray_copy


def draw(seed: int, size: tuple[int, int] = (120, 90)) -> Any:
    """Smooth random colours."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3)).astype(np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def compress(image: Any, quality: int) -> Any:
    written = BytesIO()
    image.save(written, "JPEG", quality=quality)
    return Image.open(written).convert("RGB")


def search(images: list[Any]) -> list[list[int]]:
    return find_duplicates([compute_hash(image) for image in images], [make_gray_copy(image) for image in images])


def test_smaller_and_compressed_copies_are_found() -> None:
    for seed in range(20):
        original = draw(seed)
        copies = [original.resize((60, 45)), compress(original, 40), compress(original.resize((200, 150)), 70)]
        assert search([draw(seed + 100), original, *copies, draw(seed + 200)]) == [[1, 2, 3, 4]]


def test_different_images_are_not_equal() -> None:
    assert search([draw(seed) for seed in range(300)]) == []


def test_even_images_of_different_gray_are_different() -> None:
    """All have the same hash; the gray copies decide."""
    levels = [Image.new("RGB", (20, 20), (level,) * 3) for level in (0, 60, 120, 122, 255)]
    assert len({compute_hash(image) for image in levels}) < 5 and search(levels) == [[2, 3]]


def test_handwritten_digits_are_no_copies_of_each_other() -> None:
    import pytest

    datasets = pytest.importorskip("sklearn.datasets")
    digits = [Image.fromarray((255 - 15 * image).astype(np.uint8)).convert("RGB") for image in datasets.load_digits().images[:300]]
    assert search(digits) == []


def test_pairs_are_those_of_a_search_over_all() -> None:
    chance = np.random.default_rng(5)
    hashes = [int(chance.integers(0, 2**63)) for _ in range(40)]
    for number in range(40):
        flipped = hashes[number]
        for bit in chance.choice(64, int(chance.integers(0, 12)), replace=False).tolist():
            flipped ^= 1 << bit
        hashes.append(flipped)
    copies = [bytes([number % 2 * 9] * 4) for number in range(80)]  # 9 gray levels apart, or equal
    expected = {
        (one, other)
        for one, other in itertools.combinations(range(80), 2)
        if (hashes[one] ^ hashes[other]).bit_count() <= MOST_BITS and copies[one] == copies[other]
    }
    assert len(expected) > 5 and {tuple(sorted(pair)) for pair in find_pairs(hashes, copies)} == expected
