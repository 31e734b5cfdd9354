"""Where the voice changes, and which voices a clip holds, on windows of known people."""

from __future__ import annotations

import numpy as np

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.segmentation.vad import Region
from overtone.data_prep.speakers.voice_changes import assess_clip, find_voice_changes, label_windows
from overtone.data_prep.speakers.windowed_speaker_vectors import VoiceWindows, list_windows
from tests.data_prep.speakers.test_voice_clusters import windows_of


def region(start: float, stop: float) -> Region:
    return Region(round(start * MASTER_RATE), round(stop * MASTER_RATE))


TURN = ((0.0, 6.0), (6.5, 0.4), (7.4, 2.0))
REGIONS = [region(10 * number + shift, 10 * number + shift + length) for number in range(6) for shift, length in TURN]
"""A long turn, a short word that gets no window, and an answer."""


def make_windows(*people: int) -> VoiceWindows:
    """Windows of REGIONS; the long turns belong to the first person, the answers to the second."""
    long = [region for region in REGIONS if region.seconds > 1]
    spans = [list_windows(one) for one in long]
    owners = np.concatenate([[people[number % 2]] * len(own) for number, own in enumerate(spans)])
    vectors = np.stack([windows_of(int(owner), 100)[at] for at, owner in enumerate(owners)])
    return VoiceWindows(np.array([span for own in spans for span in own]), vectors)


def test_changes_are_in_the_longest_pause_between_two_voices() -> None:
    changes = find_voice_changes(make_windows(1, 2), REGIONS)
    assert [round(change / MASTER_RATE, 2) for change in changes[:4]] == [6.25, 9.7, 16.25, 19.7]
    assert len(changes) == 11
    assert find_voice_changes(make_windows(1, 1), REGIONS) == []
    assert find_voice_changes(VoiceWindows(), REGIONS) == []


def test_a_clip_has_the_voice_of_most_of_its_windows() -> None:
    windows = make_windows(1, 2)
    labels = label_windows({"talk": windows, "empty": VoiceWindows()})
    assert len(labels["empty"]) == 0
    assert assess_clip(windows, labels["talk"], *region(0, 6)) == (0, 0.0)
    assert assess_clip(windows, labels["talk"], *region(7, 9.5)) == (1, 0.0)
    both = assess_clip(windows, labels["talk"], *region(0, 9.5))
    assert both is not None and both.voice == 0 and both.other_share > 0.1
    assert assess_clip(windows, labels["talk"], *region(9.45, 9.5)) == (1, 0.0), "without a window, that of the nearest one"
    assert assess_clip(VoiceWindows(), labels["empty"], 0, 100) is None
