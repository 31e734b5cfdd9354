"""Clips that say again what another clip says: the same samples, or the same words in the same voice at the same length.

The second kind is what a recording gives that lies in the folder twice, in two formats or at two rates.
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

from data_prep.audio import MASTER_RATE, Samples
from data_prep.measure import WORD

LENGTH_TOLERANCE = 0.02
SPECTRUM_TOLERANCE_DB = 0.8
"""Root mean square over the bands. Measured: copies by MP3, Vorbis, Opus, μ-law at 8 to 24 kHz are at most 0.5 away, another sentence
of the same voice 1.4 or more. So a second take of a sentence is kept, unless nobody could tell it from the first."""
BANDS_HZ = np.geomspace(100, 3800, 25)
"""Up to what a telephone lets through, so that a copy at a low rate is one too."""
FRAME = 1024
FLOOR_DB = -50.0
"""Below the loudest band; what is quieter is the noise of a codec."""


class Clip(NamedTuple):
    """What is compared before any sound is read."""

    id: str
    text: str
    length: int
    """Samples at `MASTER_RATE`."""


def find(clips: Iterable[Clip], samples: Callable[[str], Samples]) -> dict[str, str]:
    """Id → id of the clip that it doubles, which is the smallest id of them all and doubles none. `samples`: of the clip with that id.

    The sound is read of those clips only whose length, or whose text and about whose length, another clip has.
    """
    ordered = sorted(clips)
    doubles = _same_samples(ordered, samples)
    return doubles | _same_words([clip for clip in ordered if clip.id not in doubles], samples)


def normalised(text: str) -> str:
    """Words only, without case, accents in one form."""
    return " ".join(WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def spectrum(samples: Samples) -> NDArray[np.float64]:
    """Long-term average spectrum: dB in bands of equal ratio, relative to their mean, so that the gain does not matter."""
    padded = np.pad(samples, (0, max(0, FRAME - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[:: FRAME // 2] * np.hanning(FRAME)
    power = np.square(np.abs(np.fft.rfft(frames))).mean(axis=0)
    edges = np.ceil(BANDS_HZ * FRAME / MASTER_RATE).astype(int)
    bands = np.asarray([power[low : max(high, low + 1)].mean() for low, high in itertools.pairwise(edges)])
    decibel = 10 * np.log10(np.maximum(bands / max(bands.max(), 1e-20), 10 ** (FLOOR_DB / 10)))
    return decibel - decibel.mean()


def _same_samples(clips: list[Clip], samples: Callable[[str], Samples]) -> dict[str, str]:
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


def _same_words(clips: list[Clip], samples: Callable[[str], Samples]) -> dict[str, str]:
    texts: dict[str, list[Clip]] = defaultdict(list)
    for clip in clips:
        texts[normalised(clip.text)].append(clip)
    texts.pop("", None)
    return {double: keeper for same in texts.values() for double, keeper in _near(same, samples).items()}


def _near(clips: list[Clip], samples: Callable[[str], Samples]) -> dict[str, str]:
    """Among clips of one text, in order."""
    kept: list[tuple[Clip, NDArray[np.float64]]] = []
    doubles = {}
    for clip in clips:
        if not any(_about_as_long(clip, other) for other in clips if other is not clip):
            continue
        own = spectrum(samples(clip.id))
        keeper = next((other for other, its in kept if _about_as_long(clip, other) and _distance(own, its) <= SPECTRUM_TOLERANCE_DB), None)
        if keeper:
            doubles[clip.id] = keeper.id
        else:
            kept.append((clip, own))
    return doubles


def _about_as_long(one: Clip, other: Clip) -> bool:
    return abs(one.length - other.length) <= LENGTH_TOLERANCE * max(one.length, other.length)


def _distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.square(one - other).mean()))
