"""How many voices a set of windows holds, and which window holds which.

The windows are divided in two as long as the two halves are two voices; the order and the number of windows decide nothing else, so the
result is deterministic.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEAST_SEPARATION = 6.0
"""Ashman's D (https://doi.org/10.1086/117248) between two voices, along the line between their mean directions.

Measured with resemblyzer's vectors on telephone prompts of two women (English and French; half of the prompts, 19 to 461 windows) and on
two voices of flite: the two halves of one voice have 2.7 to 5.0, two voices 7.5 to 24. Normally distributed vectors have 2.65."""
MOST_SIMILAR = 0.88
"""Mean cosine between two voices, as a multiple of that within them. Measured on the same windows: halves of one voice have 0.94 to 0.97,
two women 0.77 to 0.79, other pairs less."""
FEWEST_WINDOWS = 6
"""Of a voice: fewer windows are too few to tell a voice from a cough."""
LEAST_SECONDS = 1.0
"""Shorter windows decide nothing about the voices and get the most similar one: vectors of single words resemble each other more than
those of their speaker. Measured with resemblyzer on random sets of 15 to 80 prompts of one woman, half of them single words: 34 of 80 sets
were two voices with all windows, 11 with those from 0.8 s on, 1 with those from 1.0 s on; of 40 sets of two women, 24 were one voice with
all windows, 1 with those from 1.0 s on."""
MOST_VOICES = 12
ROUNDS = 30
MOST_FITTED = 6000
"""Windows that the directions are computed from, spread evenly; the others are assigned to them."""

Vectors = NDArray[np.float32]


def find_voices(vectors: Vectors, lengths: NDArray[np.floating], new_speech: NDArray[np.floating] | None = None) -> NDArray[np.int64]:
    """[n] number of the voice of each window; voice 0 speaks longest.

    `vectors`: [n, H], of length 1; `lengths`: [n] seconds of each window; `new_speech`: [n] of them in no earlier window (None: all).
    """
    fitted = vectors[lengths >= LEAST_SECONDS]
    if len(fitted) < 2 * FEWEST_WINDOWS:
        return np.zeros(len(vectors), np.int64)
    step = -(-len(fitted) // MOST_FITTED)
    directions = np.stack([_mean_direction(part) for part in _divide(fitted[::step].astype(np.float64))])
    nearest = (vectors.astype(np.float64) @ directions.T).argmax(axis=1)
    order = np.argsort(-np.bincount(nearest, lengths if new_speech is None else new_speech, minlength=len(directions)), kind="stable")
    return np.argsort(order)[nearest]


def smooth_labels(labels: NDArray[np.int64], together: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The labels, with a window that differs from both of its neighbours in the same speech taking theirs.

    `together`: [n - 1], whether a window and the next one are in the same stretch of speech.
    """
    smooth = labels.copy()
    for at in range(1, len(labels) - 1):
        if together[at - 1] and together[at] and labels[at - 1] == labels[at + 1]:
            smooth[at] = labels[at - 1]
    return smooth


def _divide(vectors: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The windows of each voice."""
    done: list[NDArray[np.float64]] = []
    left = [vectors]
    while left:
        group = left.pop()
        halves = _split(group) if len(done) + len(left) + 2 <= MOST_VOICES else None
        if halves is None:
            done.append(group)
        else:
            left += [group[halves], group[~halves]]
    return done


def _split(vectors: NDArray[np.float64]) -> NDArray[np.bool_] | None:
    """[n] which half each window is in, if the halves are two voices; else None.

    2-means of directions from two starts: the sides of the main axis, and the window that is furthest from all others, which finds a voice
    that has few windows.
    """
    if len(vectors) < 2 * FEWEST_WINDOWS:
        return None
    mean = _mean_direction(vectors)
    centred = vectors - vectors.mean(axis=0)
    axis = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    furthest = vectors[(vectors @ mean).argmin()]
    best: tuple[float, NDArray[np.bool_]] | None = None
    for start in (centred @ axis > 0, vectors @ furthest > vectors @ mean):
        halves = _settle(vectors, start)
        if min(halves.sum(), (~halves).sum()) < FEWEST_WINDOWS:
            continue
        separation, similarity = measure_separation(vectors[halves], vectors[~halves])
        if separation >= LEAST_SEPARATION and similarity <= MOST_SIMILAR and (best is None or separation > best[0]):
            best = (separation, halves)
    return None if best is None else best[1]


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
    """(Ashman's D, similarity as for `MOST_SIMILAR`) of two groups of windows [n, H]."""
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
