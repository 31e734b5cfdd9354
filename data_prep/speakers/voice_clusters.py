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
MOST_VOICES = 12
ROUNDS = 30
MOST_FITTED = 6000
"""Windows that the directions are computed from, spread evenly; the others are assigned to them."""

Vectors = NDArray[np.float32]


def find_voices(vectors: Vectors, seconds: NDArray[np.floating] | None = None) -> NDArray[np.int64]:
    """[n] number of the voice of each window; voice 0 speaks longest.

    `vectors`: [n, H], of length 1; `seconds`: [n], speech of each window that is in no earlier one (None: the same for all).
    """
    if not len(vectors):
        return np.zeros(0, np.int64)
    step = -(-len(vectors) // MOST_FITTED)
    directions = np.stack([_mean_direction(part) for part in _divide(vectors[::step].astype(np.float64))])
    nearest = (vectors.astype(np.float64) @ directions.T).argmax(axis=1)
    order = np.argsort(-np.bincount(nearest, seconds, minlength=len(directions)), kind="stable")
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
