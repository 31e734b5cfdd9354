"""What a folder says about itself, and which folders are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import UserError
from recipes.voice_clone.inference.exported_model import Exported


def test_default_language_is_the_trained_one(two_voices: Any, one_voice: Any) -> None:
    assert Exported.of(two_voices.custom_voice).language(None, "anna") == "english"
    assert Exported.of(one_voice.custom_voice).language(None, "anna") == "auto"
    assert Exported.of(one_voice.custom_voice).language("de", "anna") == "german"


def test_speakers_are_found_by_any_case(two_voices: Any, one_voice: Any) -> None:
    several = Exported.of(two_voices.base)
    assert several.is_base and set(several.speakers) == {"anna", "bert"} and several.speaker("BERT ") == "bert"
    assert Exported.of(one_voice.custom_voice).speaker(None) == "anna"
    with pytest.raises(UserError, match="has several: anna, bert"):
        several.speaker(None)
    with pytest.raises(UserError, match="does not know that voice; it has anna, bert"):
        several.speaker("carl")


def test_folders_that_are_no_voice(tmp_path: Path, nano: Path) -> None:
    with pytest.raises(UserError, match="no model there"):
        Exported.of(tmp_path)
    shutil.copy(nano / "config.json", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tts_model_type": "voice_design"}))
    with pytest.raises(UserError, match="tts_model_type 'voice_design' is no voice"):
        Exported.of(tmp_path)
