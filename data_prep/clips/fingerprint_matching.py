"""Matching of fingerprints: which clips have the same sound, and how many samples they share.

The frames of a fingerprint lie on one grid in the whole recording, so clips of two recordings are compared at every offset between the
recordings.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.clips.fingerprints import BANDS, HOP, Words

LEAST_FRAMES = 16
"""Minimum overlap that is compared: half a second, 384 bits."""
SAME_SOUND = 0.32
"""Largest share of different bits in two copies. Measured on 58 English and French telephone prompts: copies in μ-law, Opus, Vorbis, MP3 or
at 8 kHz differ in at most 7 % of the bits, with 10 dB of signal-to-noise ratio or clipped by 18 dB in 30 %, with 5 dB in 33 %. Second takes
of a sentence by the same speaker differ in at least 33 %, other sentences in 35 % (0.1 % quantile) and usually 46 %."""
DIFFERENT_SOUND, AGREEING = 0.42, 0.85
"""Half a second with a larger share of different bits is another sound; this share of the stretches of two copies must agree. Takes that
were edited together from the same sounds, and synthetic sentences with the same phrase, differ in a word only."""
COPIED_CLIPS, COPIED_SHARE = 3, 0.5
"""If so many clips of two recordings, and this share of all that overlap at one offset, have the same sound, the recordings are copies, and
the other clips have it too: in a clip with long pauses, the noise of a copy changes most bits."""
COMMON = 48
"""Number of occurrences above which a word of a fingerprint is ignored, because it does not identify a sound; 48 copies of a recording are
still compared."""
VOTES = 3
"""Equal words at one offset between two recordings, from which their clips are compared there."""


class FingerprintedClip(NamedTuple):
    """A clip with its place in its recording."""

    id: str
    recording: str
    start: int
    """Samples at `overtone.data_prep.audio.waveform.MASTER_RATE`, as `stop`."""
    stop: int
    words: Words

    @property
    def frame(self) -> int:
        """Index of its first frame in the recording."""
        return -(-self.start // HOP)


class Match(NamedTuple):
    """Two clips with the same sound in part of them."""

    one: str
    other: str
    samples: int
    """Samples that they share."""
    distance: float
    """Share of different bits, 0 to 1; two different sounds have about one half."""
    offset: int
    """Sample of the recording of `one` at which that of `other` begins, to within two frames."""


def find_matches(clips: Sequence[FingerprintedClip]) -> list[Match]:
    """Return the pairs of clips with the same sound, wherever the recordings were cut: all clips of recordings that share words at one
    offset."""
    by_recording: dict[str, list[FingerprintedClip]] = defaultdict(list)
    for clip in sorted(clips, key=lambda clip: (clip.recording, clip.start)):
        by_recording[clip.recording].append(clip)
    names = sorted(by_recording)
    best: dict[tuple[str, str], Match] = {}
    for one, other, offset in _find_common_offsets([by_recording[name] for name in names]):
        pairs = list(_pair_overlapping(by_recording[names[one]], by_recording[names[other]], offset))
        found = [match for left, right in pairs if (match := compare_clips(left, right, offset))]
        if one != other and len(found) >= COPIED_CLIPS and len(found) >= COPIED_SHARE * len(pairs):
            found = [_make_match(left, right, offset, 0.0) for left, right in pairs]  # the recordings are copies, so all clips are
        for match in found:
            best.setdefault((match.one, match.other), match)
    return [best[pair] for pair in sorted(best)]


def compare_clips(
    one: FingerprintedClip, other: FingerprintedClip, offset: int, slack: int = 1, least_agreeing: float = AGREEING
) -> Match | None:
    """Return the match of two clips if frame t of the recording of `other` is frame t + `offset`, give or take `slack`, of that of `one`.
    `least_agreeing`: share of their stretches that must agree."""
    found: list[tuple[float, int, bool]] = []
    for shift in range(offset - slack, offset + slack + 1):
        begin, end = max(one.frame, other.frame + shift), min(one.frame + len(one.words), other.frame + shift + len(other.words))
        if end - begin >= LEAST_FRAMES:
            left = one.words[begin - one.frame : end - one.frame]
            right = other.words[begin - shift - other.frame : end - shift - other.frame]
            bits = np.bitwise_count(left ^ right).astype(np.float64) / (BANDS - 1)
            stretches = np.convolve(bits, np.full(LEAST_FRAMES, 1 / LEAST_FRAMES), "valid")
            found.append((float(bits.mean()), shift, bool((stretches <= DIFFERENT_SOUND).mean() >= least_agreeing)))
    distance, shift, agrees = min(found, default=(1.0, 0, False))
    if distance > SAME_SOUND or not agrees:
        return None
    return _make_match(one, other, shift, distance)


def _make_match(one: FingerprintedClip, other: FingerprintedClip, shift: int, distance: float) -> Match:
    """`shift`: frames by which the recording of `other` begins after that of `one`."""
    offset = shift * HOP
    shared = min(one.stop, other.stop + offset) - max(one.start, other.start + offset)
    return Match(one.id, other.id, shared, distance, offset) if one.id < other.id else Match(other.id, one.id, shared, distance, -offset)


def _find_common_offsets(recordings: list[list[FingerprintedClip]]) -> list[tuple[int, int, int]]:
    """Return (index, index, frames) of pairs of recordings with equal words at one offset, most votes first."""
    words = np.concatenate([clip.words for clips in recordings for clip in clips] or [np.empty(0, np.uint32)])
    owner = np.repeat(np.arange(len(recordings)), [sum(len(clip.words) for clip in clips) for clips in recordings]).astype(np.int64)
    frames = np.concatenate([clip.frame + np.arange(len(clip.words)) for clips in recordings for clip in clips] or [np.empty(0, np.int64)])
    order = np.lexsort((frames, owner, words))
    words, owner, frames = words[order], owner[order], frames[order]
    _, inverse, counts = np.unique(words, return_inverse=True, return_counts=True)
    rare = counts[inverse] <= COMMON
    words, owner, frames = words[rare], owner[rare], frames[rare]
    span = int(frames.max(initial=0)) + 2
    votes: list[NDArray[np.int64]] = []
    for lag in range(1, min(COMMON, len(words))):
        same = words[lag:] == words[:-lag]
        if not same.any():
            break
        one, other, offset = owner[:-lag][same], owner[lag:][same], (frames[:-lag] - frames[lag:])[same]
        apart = (one != other) | (np.abs(offset) >= LEAST_FRAMES)
        votes.append(((one * len(recordings) + other) * 2 * span + offset + span)[apart])
    keys, counts = np.unique(np.concatenate(votes or [np.empty(0, np.int64)]), return_counts=True)
    chosen = sorted(zip(-counts[counts >= VOTES], keys[counts >= VOTES], strict=True))
    return [
        (int(key // (2 * span)) // len(recordings), int(key // (2 * span)) % len(recordings), int(key % (2 * span)) - span)
        for _, key in chosen
    ]


def _pair_overlapping(
    ones: list[FingerprintedClip], others: list[FingerprintedClip], offset: int
) -> Iterator[tuple[FingerprintedClip, FingerprintedClip]]:
    """Yield the pairs of clips that share time if `others` begins `offset` frames later. Both are in order."""
    first = 0
    for one in ones:
        while first < len(others) and others[first].stop + offset * HOP <= one.start:
            first += 1
        for other in itertools.islice(others, first, None):
            if other.start + offset * HOP >= one.stop:
                break
            if one.id != other.id:
                yield one, other
