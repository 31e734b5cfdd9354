"""How many voices windows hold, on vectors of known people."""

from __future__ import annotations

import numpy as np
import pytest

from overtone.data_prep.speakers.voice_clusters import (
    FEWEST_WINDOWS,
    LEAST_SECONDS,
    VoiceCount,
    find_voices,
    measure_separation,
    smooth_labels,
)


def windows_of(seed: int, count: int, spread: float = 0.45) -> np.ndarray:
    """[count, 64] vectors of one person: a direction of their own with as much spread, in total, as resemblyzer's windows have."""
    person, generator = np.random.default_rng(seed), np.random.default_rng(1000 + seed)
    vectors = person.standard_normal(64) / 8 + 0.8 * np.ones(64) / 8 + spread / 8 * generator.standard_normal((count, 64))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def label(vectors: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
    return find_voices(vectors, np.full(len(vectors), LEAST_SECONDS) if lengths is None else lengths)


@pytest.mark.parametrize("count", [1, 12, 40, 300])
def test_one_person_is_one_voice(count: int) -> None:
    assert not any(label(windows_of(seed, count)).any() for seed in range(10))


@pytest.mark.parametrize("fewer", [FEWEST_WINDOWS, 30, 100])
def test_two_people_are_two_voices_and_the_first_has_most_windows(fewer: int) -> None:
    labels = label(np.concatenate([windows_of(1, fewer), windows_of(2, 120)]))
    assert labels.tolist() == [1] * fewer + [0] * 120


def test_four_people_are_told_apart_whatever_the_order_of_their_windows() -> None:
    truth = np.repeat(np.arange(4), [50, 40, 30, 20])
    vectors = np.concatenate([windows_of(seed, count) for seed, count in zip(range(4), (50, 40, 30, 20), strict=True)])
    order = np.random.default_rng(0).permutation(len(truth))
    assert label(vectors[order]).tolist() == truth[order].tolist()


def test_the_first_voice_is_the_one_that_speaks_longest() -> None:
    vectors, seconds = np.concatenate([windows_of(1, 30), windows_of(2, 20)]), np.repeat([1.5, 2.4], [30, 20])
    assert label(vectors, seconds).tolist() == [1] * 30 + [0] * 20


def test_a_wide_spread_is_no_second_voice() -> None:
    """Vectors all over the sphere: the two halves are as dissimilar as two people, but nothing separates them."""
    vectors = np.random.default_rng(0).standard_normal((200, 8))
    assert not label((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)).any()


def test_short_windows_are_no_voice_of_their_own_but_get_the_most_similar_one() -> None:
    """Vectors of single words resemble each other more than those of their speaker."""
    vectors, lengths = np.concatenate([windows_of(1, 60), windows_of(2, 20)]), np.repeat([1.6, 0.9], [60, 20])
    assert not label(vectors, lengths).any()
    three = np.concatenate([windows_of(1, 60), windows_of(3, 30), windows_of(3, 5)])
    assert label(three, np.repeat([1.6, 1.6, 0.7], [60, 30, 5])).tolist() == [0] * 60 + [1] * 35


def test_a_known_number_of_voices_is_found_although_they_resemble_each_other() -> None:
    """Two people at a fifth of the usual distance from each other: the halves of one voice differ as much."""
    one, other = windows_of(1, 60), windows_of(2, 40)
    near = one[:40] * 0.8 + other * 0.2
    vectors = np.concatenate([one, near / np.linalg.norm(near, axis=1, keepdims=True)])
    assert not label(vectors).any()
    found = find_voices(vectors, np.full(100, LEAST_SECONDS), count=VoiceCount(2, 2))
    assert found[:60].mean() < 0.2 and found[60:].mean() > 0.8


@pytest.mark.parametrize(
    ("count", "expected"), [(VoiceCount(2, 2), 2), (VoiceCount(1, 3), 3), (VoiceCount(4, 6), 4), (VoiceCount(5, 5), 5)]
)
def test_as_many_voices_are_found_as_there_may_be(count: VoiceCount, expected: int) -> None:
    vectors = np.concatenate([windows_of(seed, 30) for seed in range(4)])
    assert len(set(find_voices(vectors, np.full(120, LEAST_SECONDS), count=count).tolist())) == expected


def test_more_voices_than_the_windows_suffice_for_are_not_found() -> None:
    vectors = windows_of(1, 3 * FEWEST_WINDOWS - 1)
    found = find_voices(vectors, np.full(len(vectors), LEAST_SECONDS), count=VoiceCount(3, 3))
    assert len(set(found.tolist())) == 2


def test_too_few_windows_are_no_voice() -> None:
    assert not label(np.concatenate([windows_of(1, FEWEST_WINDOWS - 1), windows_of(2, 100)])).any()
    assert label(np.zeros((0, 64), np.float32)).tolist() == []


def test_the_separation_of_normal_distributions() -> None:
    generator = np.random.default_rng(0)
    along = np.stack([np.ones(5000), np.zeros(5000)], axis=1)
    one, other = along + generator.normal(0, 0.1, (5000, 2)), -along + generator.normal(0, 0.1, (5000, 2))
    assert measure_separation(one, other) == (pytest.approx(20, rel=0.03), pytest.approx(-1, abs=0.01))


def test_a_single_window_takes_the_voice_around_it_but_not_over_a_pause() -> None:
    labels = np.array([0, 0, 1, 0, 0, 1])
    assert smooth_labels(labels, np.ones(5, bool)).tolist() == [0, 0, 0, 0, 0, 1]
    assert smooth_labels(labels, np.array([True, False, True, True, True])).tolist() == [0, 0, 1, 0, 0, 1]
