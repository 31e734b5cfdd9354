"""What the loaded models of all speech recipes have in common."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.interface import SpeechRequest
from overtone.recipes.speech.voice_base_class import LoadedVoice
from tests.recipes.voice_clone.tones import ToneFolder, tone_folder


def test_a_voice_describes_its_folder(tmp_path: Path) -> None:
    folder = tone_folder(tmp_path / "tones")
    (folder / "config.json").write_text("{}")
    os.utime(folder / "config.json", (5, 1_700_000_000.5))
    voice = LoadedVoice(ToneFolder.inspect(folder), {"low": 1, "high": 0}, {"temperature": 1, "do_sample": False})
    assert (voice.speakers, voice.created) == (("high", "low"), 1_700_000_000)
    assert (voice.default_temperature, voice.samples_by_default) == (1.0, False)
    voice.check(SpeechRequest("Hi.", "low"))
    with pytest.raises(UserError, match="speaker eve: there are low, high"):
        voice.check(SpeechRequest("Hi.", "eve"))
