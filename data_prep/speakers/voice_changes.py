"""Finds where the voice changes in a recording, and which voices a clip holds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.segmentation.vad import Region
from overtone.data_prep.speakers.voice_clusters import MOST_VOICES, VoiceCount, find_voices, smooth_labels
from overtone.data_prep.speakers.windowed_speaker_vectors import VoiceWindows


class ClipVoice(NamedTuple):
    """The voices of one clip."""

    voice: int
    """Number of the voice with most of its windows."""
    other_share: float
    """Share of its windows with another voice."""


def find_voice_changes(windows: VoiceWindows, regions: Sequence[Region], most_voices: int = MOST_VOICES) -> list[int]:
    """Return the samples at `MASTER_RATE`, ascending: the middle of the longest pause between two regions of different voices.

    A region may end with another voice than it begins with. Regions too short for a window are skipped.
    """
    labels = label_windows({"": windows}, VoiceCount(most=most_voices))[""]
    known = []
    for index, region in enumerate(regions):
        inside = labels[windows.find_inside(region.start, region.stop)]
        if len(inside):
            known.append((index, inside[0], inside[-1]))
    changes = []
    for (left, _, before), (right, after, _) in itertools.pairwise(known):
        if before != after:
            gaps = [Region(regions[at].stop, regions[at + 1].start) for at in range(left, right)]
            changes.append(max(gaps, key=lambda gap: gap.stop - gap.start).middle)
    return changes


def label_windows(recordings: Mapping[str, VoiceWindows], count: VoiceCount | None = None) -> dict[str, NDArray[np.int64]]:
    """Return name of a recording → voice [n] of each of its windows; voices are numbered over all recordings, 0 speaks longest. `count`:
    the number of voices, if it is known."""
    filled = {name: windows for name, windows in recordings.items() if len(windows.spans)}
    if filled:
        vectors = np.concatenate([windows.vectors for windows in filled.values()])
        lengths = np.concatenate([windows.spans[:, 1] - windows.spans[:, 0] for windows in filled.values()]) / MASTER_RATE
        new = np.concatenate([measure_new_speech(windows) for windows in filled.values()])
        found = find_voices(vectors, lengths, new, count)
    labels, at = {name: np.zeros(0, np.int64) for name in recordings}, 0
    for name, windows in filled.items():
        together = windows.spans[1:, 0] <= windows.spans[:-1, 1]
        labels[name] = smooth_labels(found[at : at + len(windows.spans)], together)
        at += len(windows.spans)
    return labels


def measure_new_speech(windows: VoiceWindows) -> NDArray[np.float64]:
    """Return the seconds [n] of each window that are in no earlier window."""
    starts, stops = windows.spans.T
    known = np.concatenate([starts[:1], stops[:-1]])
    return (stops - np.maximum(starts, known)) / MASTER_RATE


def assess_clip(windows: VoiceWindows, labels: NDArray[np.int64], start: int, stop: int) -> ClipVoice | None:
    """Return the voices of samples `start:stop`; without a window inside, that of the nearest one; None if the recording has no window."""
    if not len(labels):
        return None
    inside = labels[windows.find_inside(start, stop)]
    if not len(inside):
        middles = windows.spans.sum(axis=1) // 2
        return ClipVoice(int(labels[np.abs(middles - (start + stop) // 2).argmin()]), 0.0)
    counts = np.bincount(inside)
    return ClipVoice(int(counts.argmax()), round(float(1 - counts.max() / len(inside)), 3))
