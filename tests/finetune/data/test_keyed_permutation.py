"""The keyed permutation visits every position once, is computed from a position alone, and depends on its key."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.finetune.data.keyed_permutation import derive_key, permute


@given(size=st.integers(1, 3000), key=st.integers(0, 2**63 - 1))
def test_permute_visits_every_position_once(size: int, key: int) -> None:
    image = permute(np.arange(size), size, key)
    assert np.array_equal(np.sort(image), np.arange(size))


@pytest.mark.parametrize("size", [2**20, 2**20 + 1, 2**31 + 5, 10**12])
def test_permute_of_large_sizes_stays_in_range_without_collisions(size: int) -> None:
    positions = np.unique(np.random.default_rng(0).integers(0, size, 20000))
    image = permute(positions, size, 5)
    assert image.min() >= 0 and image.max() < size and len(np.unique(image)) == len(positions)
    assert abs(float(np.mean(image)) / size - 0.5) < 0.02, "spread over the whole range"


def test_permute_of_one_position_needs_no_other() -> None:
    whole = permute(np.arange(1000), 1000, 3)
    assert [int(permute(np.array([place]), 1000, 3)[0]) for place in (0, 1, 500, 999)] == whole[[0, 1, 500, 999]].tolist()


def test_keys_and_epochs_give_other_orders() -> None:
    images = {key: tuple(permute(np.arange(500), 500, key)) for key in range(50)}
    assert len(set(images.values())) == 50
    assert max(sum(image[place] == place for place in range(500)) for image in images.values()) < 12, "no key leaves rows where they were"
    followers = Counter(b - a for image in images.values() for a, b in itertools.pairwise(image))
    assert max(followers.values()) < 0.01 * sum(followers.values()), "no stride is preferred"


def test_keys_of_integers_do_not_collide() -> None:
    keys = {derive_key(*parts) for parts in [(1, 23), (12, 3), (1, 2, 3), (123,), (1,), (2,), (1, 0), (0, 1)]}
    assert len(keys) == 8 and all(0 <= key < 2**63 for key in keys)
