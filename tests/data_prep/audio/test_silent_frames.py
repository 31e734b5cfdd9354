"""Frames without sound."""

from __future__ import annotations

import numpy as np

from overtone.data_prep.audio.silent_frames import find_silent_frames


def test_frames_far_below_the_loudest_are_silent_and_a_partial_last_one_is_a_frame() -> None:
    levels = np.repeat([0.5, 0.4, 0.004, 0.0, 0.5], 320)[:-100].astype(np.float32)
    assert find_silent_frames(levels, 16_000).tolist() == [False, False, True, True, False]
    assert find_silent_frames(levels / 1000, 16_000).all(), "-66 dB below full scale"
    assert find_silent_frames(levels[:0], 16_000).tolist() == []
