"""Groups a set of windows by voice, and finds how many voices there are.

The windows are divided in two as long as the two halves are two voices; the order and the number of windows decide nothing else, so the
result is deterministic.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAST_SEPARATION = 7.0
"""Ashman's D (https://doi.org/10.1086/117248) between two voices, along the line between their mean directions.

Measured with resemblyzer's vectors on telephone prompts of a woman (English) and a man (Italian), 20 or 60 prompts at a time: the two
halves of one voice have at most 5.5, the two voices at least 13. Normally distributed vectors have 2.65.
`workshop/benchmarks/speaker_names.py` reports on other voices."""
MOST_SIMILAR = 0.85
"""Mean cosine between two voices, as a multiple of that within them. Measured on the same windows: halves of one voice have at least 0.88,
the two voices at most 0.62."""
FEWEST_WINDOWS = 6
"""Minimum windows of a voice: with fewer, it could be a cough."""
LEAST_SECONDS = 1.4
"""Shorter windows decide nothing about the voices and get the most similar one: vectors of single words resemble each other more than
those of their speaker. With windows from 1.0 s on, the Italian voice was two or three in 4 of 8 conversations with the English one: the
extra ones consisted of windows of 1.0 to 1.1 s."""
MOST_VOICES = 12
ROUNDS = 30
MOST_FITTED = 6000
"""Windows that the directions are computed from, spread evenly; the others are assigned to them."""

Vectors = NDArray[np.float32]


class VoiceCount(NamedTuple):
    """Limits on the number of voices."""

    least: int = 1
    most: int = MOST_VOICES


class _Split(NamedTuple):
    """A group of windows in two halves."""

    is_two_voices: bool
    separation: float
    halves: NDArray[np.bool_]
    """[n] half that each window is in."""


def find_voices(
    vectors: Vectors, lengths: NDArray[np.floating], new_speech: NDArray[np.floating] | None = None, count: VoiceCount | None = None
) -> NDArray[np.int64]:
    """Return the number [n] of the voice of each window; voice 0 speaks longest.

    `vectors`: [n, H], of length 1; `lengths`: [n] seconds of each window; `new_speech`: [n] seconds of each window that are in no earlier
    one (None: all). `count`: the number of voices, if it is known; fewer than its least are found only if the windows do not suffice.
    """
    fitted = vectors[lengths >= LEAST_SECONDS]
    if len(fitted) < 2 * FEWEST_WINDOWS:
        return np.zeros(len(vectors), np.int64)
    step = -(-len(fitted) // MOST_FITTED)
    groups = _divide(fitted[::step].astype(np.float64), count or VoiceCount())
    directions = np.stack([_mean_direction(group) for group in groups])
    nearest = (vectors.astype(np.float64) @ directions.T).argmax(axis=1)
    order = np.argsort(-np.bincount(nearest, lengths if new_speech is None else new_speech, minlength=len(directions)), kind="stable")
    return np.argsort(order)[nearest]


def smooth_labels(labels: NDArray[np.int64], together: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the labels, where a window that differs from both neighbours in the same speech takes their label.

    `together`: [n - 1], True if a window and the next one are in the same stretch of speech.
    """
    smooth = labels.copy()
    for at in range(1, len(labels) - 1):
        if together[at - 1] and together[at] and labels[at - 1] == labels[at + 1]:
            smooth[at] = labels[at - 1]
    return smooth


def _divide(vectors: NDArray[np.float64], count: VoiceCount) -> list[NDArray[np.float64]]:
    """Return the windows of each voice. The group whose halves differ most is divided first."""
    groups = [(vectors, _split(vectors))]
    while len(groups) < count.most:
        known = [(at, split) for at, (_, split) in enumerate(groups) if split is not None]
        divisible = [(split.separation, at) for at, split in known if split.is_two_voices or len(groups) < count.least]
        if not divisible:
            break
        group, split = groups.pop(max(divisible)[1])
        assert split is not None
        groups += [(half, _split(half)) for half in (group[~split.halves], group[split.halves])]
    return _join([group for group, _ in groups], count.least)


def _join(groups: list[NDArray[np.float64]], least: int) -> list[NDArray[np.float64]]:
    """Return the groups after joining those that are one voice: a division can separate windows of one voice together with those of
    others."""
    while len(groups) > least:
        pairs = itertools.combinations(range(len(groups)), 2)
        similar = [(separation, one, other) for one, other in pairs if (separation := _measure_one_voice(groups[one], groups[other])) > 0]
        if not similar:
            break
        _, one, other = min(similar)
        groups = [*(group for at, group in enumerate(groups) if at not in (one, other)), np.concatenate([groups[one], groups[other]])]
    return groups


def _measure_one_voice(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return Ashman's D between two groups if they are one voice; 0 if they are two."""
    separation, similarity = measure_separation(one, other)
    return 0.0 if _are_two_voices(separation, similarity) else separation


def _are_two_voices(separation: float, similarity: float) -> bool:
    return separation >= LEAST_SEPARATION and similarity <= MOST_SIMILAR


def _split(vectors: NDArray[np.float64]) -> _Split | None:
    """Return the best division of the windows in two halves, preferably of two voices; None if there are too few windows.

    2-means of directions from two starts: the sides of the main axis, and the window that is furthest from all others, which finds a voice
    that has few windows.
    """
    if len(vectors) < 2 * FEWEST_WINDOWS:
        return None
    mean = _mean_direction(vectors)
    centred = vectors - vectors.mean(axis=0)
    axis = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    furthest = vectors[(vectors @ mean).argmin()]
    found = []
    for start in (centred @ axis > 0, vectors @ furthest > vectors @ mean):
        halves = _settle(vectors, start)
        if min(halves.sum(), (~halves).sum()) >= FEWEST_WINDOWS:
            separation, similarity = measure_separation(vectors[halves], vectors[~halves])
            found.append(_Split(_are_two_voices(separation, similarity), separation, halves))
    return max(found, key=lambda split: split[:2], default=None)


def _settle(vectors: NDArray[np.float64], halves: NDArray[np.bool_]) -> NDArray[np.bool_]:
    for _ in range(ROUNDS):
        if halves.all() or not halves.any():
            break
        axis = _mean_direction(vectors[halves]) - _mean_direction(vectors[~halves])
        found = vectors @ axis > 0
        if (found == halves).all():
            break
        halves = found
    return halves


def measure_separation(one: NDArray[np.floating], other: NDArray[np.floating]) -> tuple[float, float]:
    """Return (Ashman's D, similarity as for `MOST_SIMILAR`) of two groups of windows [n, H]."""
    first, second = one.mean(axis=0), other.mean(axis=0)
    axis = _mean_direction(one) - _mean_direction(other)
    along, across = one @ axis, other @ axis
    spread = np.sqrt((along.var() + across.var()) / 2)
    similarity = first @ second / max(float(np.linalg.norm(first) * np.linalg.norm(second)), 1e-12)
    return float((along.mean() - across.mean()) / max(float(spread), 1e-12)), float(similarity)


def _mean_direction(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    mean = vectors.mean(axis=0)
    direction: NDArray[np.float64] = mean / max(float(np.linalg.norm(mean)), 1e-12)
    return direction
