"""What is read from an exported folder before its weights, and which folders are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.voice_clone.inference.exported_folder import ExportedModel


def test_the_default_language_is_the_trained_one(two_voices: Any, one_voice: Any) -> None:
    assert ExportedModel.read(two_voices.custom_voice).language(None, "anna") == "english"
    assert ExportedModel.read(one_voice.custom_voice).language(None, "anna") == "auto"
    assert ExportedModel.read(one_voice.custom_voice).language("de", "anna") == "german"


def test_speaker_names_are_case_insensitive(two_voices: Any, one_voice: Any) -> None:
    several = ExportedModel.read(two_voices.base)
    assert several.is_base and set(several.speakers) == {"anna", "bert"} and several.speaker("BERT ") == "bert"
    assert ExportedModel.read(one_voice.custom_voice).speaker(None) == "anna"
    with pytest.raises(UserError, match="has several speakers: anna, bert"):
        several.speaker(None)
    with pytest.raises(UserError, match="does not have this speaker; it has anna, bert"):
        several.speaker("carl")


def test_folders_without_a_speech_model_are_refused(tmp_path: Path, nano: Path) -> None:
    with pytest.raises(UserError, match="no model there"):
        ExportedModel.read(tmp_path)
    shutil.copy(nano / "config.json", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tts_model_type": "voice_design"}))
    with pytest.raises(UserError, match="tts_model_type 'voice_design' is not a model that can speak here"):
        ExportedModel.read(tmp_path)
