"""The model card of exported voices, whatever the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.exporting.model_card_metadata import split_card
from overtone.finetune.storage import demo_models
from overtone.recipes.speech.model_card import render_voice_card
from overtone.recipes.speech.voices_json_schema import TrainedSpeaker, TrainedVoices


class Speaker(TrainedSpeaker):
    language: str | None = None
    id: int = 0

    @property
    def spoken_language(self) -> str | None:
        return self.language


VOICES = TrainedVoices[Speaker]
STATE: dict[str, Any] = {
    "speakers": [
        {"name": "abe", "language": "german", "clips": 2, "seconds": 1800.0},
        {"name": "zoe", "language": None, "clips": 3, "seconds": 5400.0},
    ],
    "data": {"name": "mine/train.jsonl", "sha256": "ab" * 32, "clips": 5},
    "base": {"name": "maker/base", "revision": "abc"},
}
INHERITED = {"license": "mit", "language": ["fr"]}


def test_the_card_states_consent_speakers_data_and_base() -> None:
    header, text = split_card(render_voice_card(VOICES.model_validate(STATE), INHERITED, "transformers", ["mine"], "Speak!"))
    assert header == {
        "base_model": "maker/base",
        "base_model_relation": "finetune",
        "library_name": "transformers",
        "pipeline_tag": "text-to-speech",
        "license": "mit",
        "language": ["de"],
        "tags": ["mine"],
    }
    for part in (
        "only with the consent of each of them",
        "Tell listeners that the speech is synthetic",
        "| speaker | language | clips | minutes |",
        "| abe | german | 2 | 30.0 |\n| zoe | auto | 3 | 90.0 |\n",
        "Data: `mine/train.jsonl`, 5 clips, 2.00 hours, SHA-256 `" + "ab" * 32,
        "Base: maker/base@abc. The base's licence applies",
    ):
        assert part in text
    assert text.endswith("\n\nSpeak!\n")


def test_a_recipe_chooses_what_its_table_says_of_a_speaker() -> None:
    speakers = [{"name": "abe", "id": 7, "clips": 1, "seconds": 6.0}]
    state = {**STATE, "speakers": speakers, "base": {"name": "base", "revision": None}}
    header, text = split_card(
        render_voice_card(VOICES.model_validate(state), INHERITED, "transformers", [], "", ("number", lambda speaker: speaker.id))
    )
    assert "| speaker | number | clips | minutes |" in text and "| abe | 7 | 1 | 0.1 |" in text and "Base: base. " in text
    assert header["language"] == ["fr"], "of the base, where the recipe knows no languages"
    assert "base_model" not in header, "a folder is no name on the hub"


def test_a_model_trained_from_a_demo_model_has_its_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_models, "IN_CLONE", tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "toy.zip").touch()
    card = render_voice_card(VOICES.model_validate({**STATE, "base": {"name": "toy", "revision": None}}), {}, "transformers", [], "")
    assert "applies to this model too.\n\n**demo model toy: " in card
    assert "demo model" not in render_voice_card(VOICES.model_validate(STATE), {}, "transformers", [], "")
