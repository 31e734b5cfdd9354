"""What is read from an exported folder before its weights, and which folders are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.qwen3_tts.inference.exported_folder import ExportedModel


def test_the_default_language_is_the_trained_one(two_voices: Any, one_voice: Any) -> None:
    assert ExportedModel.inspect(two_voices.custom_voice).choose_language(None, "anna") == "english"
    assert ExportedModel.inspect(one_voice.custom_voice).choose_language(None, "anna") == "auto"
    assert ExportedModel.inspect(one_voice.custom_voice).choose_language("de", "anna") == "german"


def test_speaker_names_are_case_insensitive(two_voices: Any, one_voice: Any) -> None:
    several = ExportedModel.inspect(two_voices.base)
    assert several.can_clone and set(several.speakers) == {"anna", "bert"} and several.find_speaker("BERT ") == "bert"
    assert ExportedModel.inspect(one_voice.custom_voice).find_speaker(None) == "anna"
    with pytest.raises(UserError, match="has several speakers: anna, bert"):
        several.find_speaker(None)
    with pytest.raises(UserError, match="does not have this speaker; it has anna, bert"):
        several.find_speaker("carl")


def test_folders_without_a_speech_model_are_refused(tmp_path: Path, nano: Path) -> None:
    with pytest.raises(UserError, match="no model there"):
        ExportedModel.inspect(tmp_path)
    shutil.copy(nano / "config.json", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tts_model_type": "voice_design"}))
    with pytest.raises(UserError, match="tts_model_type 'voice_design' is not a model that can speak here"):
        ExportedModel.inspect(tmp_path)
