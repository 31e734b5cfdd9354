"""Clips of whole frames, at levels as recordings have them."""

from __future__ import annotations

import math

import numpy as np

from recipes.voice_clone.studio.codec import training_clips
from recipes.voice_clone.studio.codec.training_clips import Clip


def test_a_clip_is_whole_frames_and_its_features_are_of_each(clips: list[Clip]) -> None:
    clip = training_clips.make_clip(clips[0].wave[:5000], "text", "a")
    assert (clip.frames, len(clip.wave)) == (3, 3 * 1920)
    assert not clip.wave[5000:].any()
    assert np.array_equal(clip.cut(1, 2), clip.wave[1920:3840])


def test_frames_are_taken_with_their_features(clips: list[Clip]) -> None:
    clip = clips[0]
    some = training_clips.taken(clip.heard, 4, 9)
    assert np.array_equal(some.vectors(0.5), clip.heard.vectors(0.5)[4:9])


def test_levels_stay_in_their_range_and_most_are_near_the_clips_own(clips: list[Clip]) -> None:
    random = np.random.default_rng(0)
    decibels = [20 * math.log10(training_clips.gain_of(random)) for _ in range(1000)]
    assert -20 <= min(decibels) < -19
    assert 2.9 < max(decibels) <= 3
    assert -4 < np.median(decibels) < -1


def test_the_first_version_is_as_recorded_and_the_others_are_known_by_the_seed(clips: list[Clip]) -> None:
    assert set(training_clips.gains(clips, 0, 0)) == {1.0}
    assert training_clips.gains(clips, 0, 1) == training_clips.gains(clips, 0, 1)
    assert training_clips.gains(clips, 0, 1) != training_clips.gains(clips, 1, 1)
