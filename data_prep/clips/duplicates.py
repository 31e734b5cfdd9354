"""Detection of duplicate clips: identical samples, or the same text with nearly the same duration and spectrum.

The second case occurs when a recording is in the folder twice, in two formats or at two sample rates.
"""

from __future__ import annotations

import hashlib
import itertools
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.audio.waveform import MASTER_RATE, Samples
from data_prep.clips.measurements import WORD

LENGTH_TOLERANCE = 0.02
SPECTRUM_TOLERANCE_DB = 0.8
"""Root mean square over the bands. Measured: copies in MP3, Vorbis, Opus, μ-law at 8 to 24 kHz differ by at most 0.5, another sentence of
the same voice by at least 1.4. A second take of a sentence is kept, unless it is indistinguishable from the first."""
BANDS_HZ = np.geomspace(100, 3800, 25)
"""Limited to telephone bandwidth, so that copies at a low sample rate are found."""
FRAME = 1024
FLOOR_DB = -50.0
"""Relative to the loudest band; anything quieter is codec noise."""


class DuplicateCandidate(NamedTuple):
    """Fields compared before any audio is read."""

    id: str
    text: str
    length: int
    """Samples at `MASTER_RATE`."""


def find_duplicates(clips: Iterable[DuplicateCandidate], samples: Callable[[str], Samples]) -> dict[str, str]:
    """Id of each duplicate → id of the kept clip, the smallest id of its group. `samples`: reads the samples of a clip by id.

    Audio is read only for clips that share their length, or their text and approximate length, with another clip.
    """
    ordered = sorted(clips)
    doubles = _find_same_samples(ordered, samples)
    return doubles | _find_same_words([clip for clip in ordered if clip.id not in doubles], samples)


def normalise_text(text: str) -> str:
    """The words of a text, case-folded, in Unicode NFKC."""
    return " ".join(WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def compute_spectrum(samples: Samples) -> NDArray[np.float64]:
    """[bands] long-term average spectrum: dB in logarithmic bands, relative to their mean, so that gain does not matter."""
    padded = np.pad(samples, (0, max(0, FRAME - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[:: FRAME // 2] * np.hanning(FRAME)
    power = np.square(np.abs(np.fft.rfft(frames))).mean(axis=0)
    edges = np.ceil(BANDS_HZ * FRAME / MASTER_RATE).astype(int)
    bands = np.asarray([power[low : max(high, low + 1)].mean() for low, high in itertools.pairwise(edges)])
    decibel = 10 * np.log10(np.maximum(bands / max(bands.max(), 1e-20), 10 ** (FLOOR_DB / 10)))
    return decibel - decibel.mean()


def _find_same_samples(clips: list[DuplicateCandidate], samples: Callable[[str], Samples]) -> dict[str, str]:
    lengths = Counter(clip.length for clip in clips)
    first: dict[bytes, str] = {}
    doubles = {}
    for clip in clips:
        if lengths[clip.length] > 1:
            digest = hashlib.sha256(np.ascontiguousarray(samples(clip.id)).tobytes()).digest()
            keeper = first.setdefault(digest, clip.id)
            if keeper != clip.id:
                doubles[clip.id] = keeper
    return doubles


def _find_same_words(clips: list[DuplicateCandidate], samples: Callable[[str], Samples]) -> dict[str, str]:
    texts: dict[str, list[DuplicateCandidate]] = defaultdict(list)
    for clip in clips:
        texts[normalise_text(clip.text)].append(clip)
    texts.pop("", None)
    return {double: keeper for same in texts.values() for double, keeper in _find_similar_sounding(same, samples).items()}


def _find_similar_sounding(clips: list[DuplicateCandidate], samples: Callable[[str], Samples]) -> dict[str, str]:
    """Duplicates among clips with the same text, in order."""
    kept: list[tuple[DuplicateCandidate, NDArray[np.float64]]] = []
    doubles = {}
    for clip in clips:
        if not any(_have_similar_length(clip, other) for other in clips if other is not clip):
            continue
        own = compute_spectrum(samples(clip.id))
        keeper = next(
            (other for other, its in kept if _have_similar_length(clip, other) and _compute_distance(own, its) <= SPECTRUM_TOLERANCE_DB),
            None,
        )
        if keeper:
            doubles[clip.id] = keeper.id
        else:
            kept.append((clip, own))
    return doubles


def _have_similar_length(one: DuplicateCandidate, other: DuplicateCandidate) -> bool:
    return abs(one.length - other.length) <= LENGTH_TOLERANCE * max(one.length, other.length)


def _compute_distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.square(one - other).mean()))
