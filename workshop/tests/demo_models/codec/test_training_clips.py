"""Clips of whole frames, at levels as in recordings."""

from __future__ import annotations

import math

import numpy as np

from workshop.demo_models.codec import training_clips
from workshop.demo_models.codec.training_clips import CodecClip


def test_a_clip_is_padded_to_whole_frames(clips: list[CodecClip]) -> None:
    clip = training_clips.make_clip(clips[0].wave[:5000], "text", "a")
    assert (clip.frames, len(clip.wave)) == (3, 3 * 1920)
    assert not clip.wave[5000:].any()
    assert np.array_equal(clip.cut(1, 2), clip.wave[1920:3840])
    assert np.array_equal(clip.cut(1, 2, 500), clip.wave[1420:3340])
    assert np.array_equal(clip.cut(0, 1, 500), [*np.zeros(500), *clip.wave[:1420]])


def test_features_of_some_frames_are_sliced(clips: list[CodecClip]) -> None:
    clip = clips[0]
    some = training_clips.slice_features(clip.features, 4, 9)
    assert np.array_equal(some.vectors(0.5), clip.features.vectors(0.5)[4:9])


def test_random_levels_are_in_range_and_mostly_near_the_original(clips: list[CodecClip]) -> None:
    random = np.random.default_rng(0)
    decibels = [20 * math.log10(training_clips.draw_gain(random)) for _ in range(1000)]
    assert -20 <= min(decibels) < -19
    assert 2.9 < max(decibels) <= 3
    assert -4 < np.median(decibels) < -1


def test_version_0_has_the_original_level_and_others_depend_on_the_seed(clips: list[CodecClip]) -> None:
    assert set(training_clips.draw_gains(clips, 0, 0)) == {1.0}
    assert training_clips.draw_gains(clips, 0, 1) == training_clips.draw_gains(clips, 0, 1)
    assert training_clips.draw_gains(clips, 0, 1) != training_clips.draw_gains(clips, 1, 1)
