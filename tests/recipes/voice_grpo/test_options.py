"""Tests of `overtone.recipes.voice_grpo.options`."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from overtone.recipes.voice_grpo.options import Options


def test_a_clip_has_whole_frames() -> None:
    assert Options(max_seconds=1.0).longest_clip == 12 and Options(max_seconds=0.08).longest_clip == 1
    with pytest.raises(ValidationError, match=r"max_seconds: 0.05 is less than a frame, 0.08 s"):
        Options(max_seconds=0.05)
