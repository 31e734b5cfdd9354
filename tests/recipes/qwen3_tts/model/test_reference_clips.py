"""Tests of `overtone.recipes.qwen3_tts.model.reference_clips`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.finetune.errors import UserError
from overtone.recipes.qwen3_tts.model.reference_clips import SAMPLE_RATE, read_reference_clip

NOISE = np.random.default_rng(0).normal(0.1, 0.05, 2 * SAMPLE_RATE).astype(np.float32)


def test_a_clip_at_the_rate_of_the_encoder_is_unchanged(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", NOISE, SAMPLE_RATE, subtype="FLOAT")
    assert np.array_equal(read_reference_clip(tmp_path / "a.wav"), NOISE), "with its offset"


def test_the_length_of_another_rate_is_rounded_up(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", NOISE[:44_101], 44_100, subtype="FLOAT")
    assert len(read_reference_clip(tmp_path / "a.wav")) == 24_001


def test_a_clip_that_the_encoder_cannot_read_is_refused(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "short.wav", NOISE[:100], SAMPLE_RATE)
    with pytest.raises(UserError, match="lasts 0.00 s"):
        read_reference_clip(tmp_path / "short.wav")
    with pytest.raises(UserError, match=r"missing\.wav is not usable"):
        read_reference_clip(tmp_path / "missing.wav")
