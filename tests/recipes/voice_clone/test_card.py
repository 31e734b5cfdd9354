"""The model card says what it must."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune import shipped
from recipes.voice_clone.card import model_card


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
        ("base", "generate_voice_clone("),
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


@pytest.mark.parametrize(("revision", "shown"), [(None, "Qwen/Base"), ("abc", "Qwen/Base@abc")])
def test_header_names_the_base(revision: str | None, shown: str) -> None:
    card = model_card(state("Qwen/Base", revision), "base")
    assert yaml.safe_load(card.split("---")[1])["base_model"] == shown


def test_what_a_demo_model_was_trained_into_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "HERE", tmp_path)
    assert "demo model" not in model_card(state("toy"), "base")
    (tmp_path / "toy.zip").touch()
    assert "**demo model toy: a few hundred words, synthetic voices" in model_card(state("toy"), "base")
