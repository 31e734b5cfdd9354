"""The model card says what it must."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from data_prep.audio_codecs.qwen_tts_import import import_qwen_tts
from finetune.storage import demo_models
from recipes.voice_clone.exporting.model_card import model_card
from recipes.voice_clone.model.sampling_settings import CONFIG


def state(name: str, revision: str | None = None) -> dict[str, Any]:
    return {
        "speakers": [
            {"name": "abe", "row": 3000, "language": "german", "clips": 2, "seconds": 1800.0},
            {"name": "zoe", "row": 3001, "language": None, "clips": 3, "seconds": 5400.0},
        ],
        "data": {"name": "mine/train.jsonl", "sha256": "ab" * 32, "clips": 5},
        "base": {"name": name, "revision": revision},
    }


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("custom_voice", 'generate_custom_voice(text="Hello, this is my voice.", speaker="abe", language="german")'),
        ("base", 'ref_audio="clip.wav", x_vector_only_mode=True, non_streaming_mode=True'),
    ],
)
def test_consent_synthesis_data_and_base(kind: str, call: str) -> None:
    card = model_card(state("Qwen/Qwen3-TTS-12Hz-0.6B-Base"), kind)
    for said in (
        "only with the consent of each of them",
        "the speech is synthetic",
        "| abe | german | 2 | 30.0 |",
        "| zoe | auto | 3 | 90.0 |",
        "`mine/train.jsonl`, 5 clips, 2.00 hours, SHA-256 `" + "ab" * 32,
        "Base: Qwen/Qwen3-TTS-12Hz-0.6B-Base.",
        call,
    ):
        assert said in card


def test_only_a_base_says_what_it_was_not_trained_for() -> None:
    assert "**not** trained for in-context cloning" in model_card(state("Qwen/Base"), "base").replace("\n", " ")
    assert "ref_text" not in model_card(state("Qwen/Base"), "custom_voice")


@pytest.mark.parametrize("kind", ["custom_voice", "base"])
def test_the_cards_own_code_speaks(kind: str, fresh: Any, export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a stranger would run it: beside a clip, in the stock package, on an export of a model of the real classes."""
    folder = export(fresh, kind, tmp_path / "export")
    settings = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(settings | {"max_new_tokens": 8}))  # a model that knows nothing hardly ever ends by itself
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    shutil.copy(fresh.config.data.train.parent / "low.flac", tmp_path / "clip.wav")  # by its content, not by its name, it is FLAC
    monkeypatch.chdir(tmp_path)
    import_qwen_tts()
    found: dict[str, Any] = {}
    exec(code.replace("path/of/this/folder", str(folder)), found)
    (wave,) = found["waves"]
    assert found["rate"] == 24000 and len(wave) in range(1920, 9 * 1920) and np.isfinite(wave).all()


@pytest.mark.parametrize(("revision", "shown"), [(None, "Qwen/Base"), ("abc", "Qwen/Base@abc")])
def test_header_names_the_base(revision: str | None, shown: str) -> None:
    card = model_card(state("Qwen/Base", revision), "base")
    assert yaml.safe_load(card.split("---")[1])["base_model"] == shown


def test_what_a_demo_model_was_trained_into_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_models, "HERE", tmp_path)
    assert "demo model" not in model_card(state("toy"), "base")
    (tmp_path / "toy.zip").touch()
    assert "**demo model toy: knows only a few hundred words and synthetic voices" in model_card(state("toy"), "base")
