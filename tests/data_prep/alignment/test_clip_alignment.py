"""Clip files aligned with their texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.data_prep.alignment import clip_alignment
from overtone.data_prep.alignment.ctc_aligner import CtcAligner
from overtone.finetune.errors import UserError
from tests.data_prep.alignment.tone_model import save_tone_model, speak


def test_clips_are_scored_by_id(tmp_path: Path) -> None:
    aligner = clip_alignment.open_aligner("--align", str(save_tone_model(tmp_path / "model")))
    assert isinstance(aligner, CtcAligner)
    soundfile.write(tmp_path / "clip.wav", speak("ab cd") * 0.9, 16000)
    soundfile.write(tmp_path / "long.wav", np.tile(speak("ab"), 150), 16000)
    clips = {"right": (tmp_path / "clip.wav", "ab cd"), "wrong": (tmp_path / "clip.wav", "dc ba"), "long": (tmp_path / "long.wav", "ab")}
    found = clip_alignment.align_clips(aligner.load("cpu"), clips)
    assert found.keys() == {"right", "wrong"}
    assert (found["right"].score or 0) > 0 > (found["wrong"].score or 0)


def test_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "whisper"}')
    with pytest.raises(UserError, match=r"--align .* is not a Wav2Vec2 model"):
        clip_alignment.open_aligner("--align", str(tmp_path))
