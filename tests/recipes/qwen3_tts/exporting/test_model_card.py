"""The model card of an export."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard

from overtone.data_prep.audio_codecs.qwen_tts_import import import_qwen_tts
from overtone.finetune.exporting.model_card_metadata import THIS_MODEL
from overtone.finetune.storage import demo_models
from overtone.recipes.qwen3_tts.exporting.model_card import write_model_card
from overtone.recipes.qwen3_tts.state import VoiceCloneState
from overtone.recipes.speech.sampling_settings import CONFIG


def state(name: str, revision: str | None = None) -> VoiceCloneState:
    content = {
        "speakers": [
            {"name": "abe", "row": 3000, "language": "german", "clips": 2, "seconds": 1800.0},
            {"name": "zoe", "row": 3001, "language": None, "clips": 3, "seconds": 5400.0},
        ],
        "data": {"name": "mine/train.jsonl", "sha256": "ab" * 32, "clips": 5},
        "base": {"name": name, "revision": revision},
    }
    return VoiceCloneState.model_validate(content)


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("custom_voice", 'generate_custom_voice(text="Hello, this is my voice.", speaker="abe", language="german")'),
        ("base", 'ref_audio="clip.wav", x_vector_only_mode=True, non_streaming_mode=True'),
    ],
)
def test_the_card_states_consent_data_and_base(kind: str, call: str) -> None:
    card = write_model_card(state("Qwen/Qwen3-TTS-12Hz-0.6B-Base"), kind, {})
    for text in (
        "only with the consent of each of them",
        "the speech is synthetic",
        "| abe | german | 2 | 30.0 |",
        "| zoe | auto | 3 | 90.0 |",
        "`mine/train.jsonl`, 5 clips, 2.00 hours, SHA-256 `" + "ab" * 32,
        "Base: Qwen/Qwen3-TTS-12Hz-0.6B-Base.",
        call,
    ):
        assert text in card


def test_only_the_card_of_a_base_mentions_in_context_cloning() -> None:
    assert "**not** trained for in-context cloning" in write_model_card(state("Qwen/Base"), "base", {}).replace("\n", " ")
    assert "ref_text" not in write_model_card(state("Qwen/Base"), "custom_voice", {})


@pytest.mark.parametrize("kind", ["custom_voice", "base"])
def test_the_code_in_the_card_runs(kind: str, fresh: Any, export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user would run it: with a clip, in the stock package, on an export of the real classes."""
    folder = export(fresh, kind, tmp_path / "export")
    settings = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(settings | {"max_new_tokens": 8}))  # an untrained model rarely ends its speech
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    shutil.copy(fresh.config.data.train.parent / "low.flac", tmp_path / "clip.wav")  # the content is FLAC, whatever the name
    monkeypatch.chdir(tmp_path)
    import_qwen_tts()
    found: dict[str, Any] = {}
    exec(code.replace(THIS_MODEL, str(folder)), found)
    (wave,) = found["waves"]
    assert found["rate"] == 24000 and len(wave) in range(1920, 9 * 1920) and np.isfinite(wave).all()


@pytest.mark.parametrize("revision", [None, "abc"])
def test_the_header_is_valid_on_the_hub(revision: str | None) -> None:
    card = write_model_card(state("Qwen/Base", revision), "base", {"license": "apache-2.0", "language": ["en", "zh"]})
    found = ModelCard(card).data
    assert (found.base_model, found.license, found.library_name, found.pipeline_tag, found.language) == (
        *("Qwen/Base", "apache-2.0", "qwen-tts", "text-to-speech", ["de"]),
    )
    assert ("Base: Qwen/Base@abc." in card) == (revision == "abc")


def test_a_base_in_a_folder_is_not_in_the_header() -> None:
    found = ModelCard(write_model_card(state("my-base"), "base", {})).data
    assert found.base_model is None and found.license is None


def test_a_model_trained_from_a_demo_model_has_its_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_models, "IN_CLONE", tmp_path)
    assert "demo model" not in write_model_card(state("toy"), "base", {})
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "toy.zip").touch()
    assert "**demo model toy: knows only a few hundred words and synthetic voices" in write_model_card(state("toy"), "base", {})
