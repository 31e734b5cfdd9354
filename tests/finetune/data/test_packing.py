"""Every sample is in one bin, no bin overflows, and little room is wasted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.finetune.data.cached_samples import Ids
from overtone.finetune.data.packing import best_fit, fill

lengths_of_rows = st.lists(st.integers(1, 100), min_size=0, max_size=90).map(lambda values: np.sort(np.array(values, dtype=np.int64)))


@given(lengths=lengths_of_rows, room=st.integers(1, 250))
def test_each_row_is_taken_once_within_the_room(lengths: Ids, room: int) -> None:
    ids = np.arange(100, 100 + len(lengths))
    for groups, size in (
        (best_fit(ids, lengths, room), lambda group: lengths[group - 100].sum()),
        (fill(ids, lengths, room), lambda group: lengths[group - 100].max() * len(group)),
    ):
        assert sorted(row for group in groups for row in group.tolist()) == ids.tolist()
        assert all(size(group) <= room or len(group) == 1 for group in groups)


@given(lengths=lengths_of_rows, room=st.integers(100, 250))
def test_best_fit_needs_few_bins(lengths: Ids, room: int) -> None:
    fewest = -(-int(lengths.sum()) // room)
    assert len(best_fit(np.arange(len(lengths)), lengths, room)) <= 11 / 9 * max(fewest, (lengths * 2 > room).sum()) * 2 + 1
    assert not any(
        lengths[one].sum() + lengths[other].sum() <= room
        for bins in [best_fit(np.arange(len(lengths)), lengths, room)]
        for place, one in enumerate(bins)
        for other in bins[place + 1 :]
    ), "two bins that fit into one were left apart"


def test_each_row_goes_to_the_bin_with_the_least_room_left() -> None:
    lengths = np.array([2, 3, 5, 6, 8])
    assert [group.tolist() for group in best_fit(np.arange(5), lengths, 10)] == [[4, 0], [3, 1], [2]]


@pytest.mark.parametrize("seed", range(3))
def test_a_window_of_chats_is_packed_to_99_percent(seed: int) -> None:
    """Log-normal lengths around 350 tokens, as instruction data has."""
    random = np.random.default_rng(seed)
    lengths = np.sort(np.clip(random.lognormal(5.6, 0.8, 4096), 8, 4096).astype(np.int64))
    bins = best_fit(np.arange(len(lengths)), lengths, 4096)
    assert lengths.sum() / (len(bins) * 4096) >= 0.99
