"""Tests of `overtone.recipes.qwen3_tts.model.base_voices`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from overtone.finetune.errors import UserError
from overtone.recipes.qwen3_tts.model.base_voices import read_base_voices, read_speaker_vectors
from tests.recipes.voice_clone.conftest import Ready


def test_the_vectors_are_those_of_the_run(exported: Path, fresh: Ready) -> None:
    voices = read_base_voices(exported)
    assert [speaker.name for speaker in voices.speakers] == ["anna", "bert"]
    torch.testing.assert_close(read_speaker_vectors(exported, voices.rows), fresh.model.speaker_vectors, rtol=0, atol=0)
    assert voices.hidden_size == fresh.model.speaker_vectors.shape[1]


def test_a_model_without_trained_voices_is_refused(nano: Path) -> None:
    with pytest.raises(UserError, match=r"it has no trained voices \(voices.json\); give the export of a voice_clone run"):
        read_base_voices(nano)


def test_damaged_voices_are_refused(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "export")
    content = json.loads((tmp_path / "export" / "voices.json").read_text())
    content["speakers"][0]["row"] = -1
    (tmp_path / "export" / "voices.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"not that of a Qwen3-TTS voice \(speakers.0.row: .* export the run again"):
        read_base_voices(tmp_path / "export")
    with pytest.raises(UserError, match="its weights have no vectors"):
        read_speaker_vectors(exported, [10**6])
