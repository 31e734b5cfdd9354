"""Tests of `overtone.recipes.codec_lm.exporting.model_card`."""

from __future__ import annotations

from pathlib import Path

from overtone.finetune.exporting.model_card_metadata import split_card
from overtone.recipes.codec_lm.exporting.model_card import write_model_card
from overtone.recipes.codec_lm.state import CodecLmState
from tests.recipes.codec_lm import tiny_models

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = "train:\n  lr: 2.0e-4\n"
HUB_NAME = "canopylabs/orpheus-3b-0.1-pretrained"


def test_the_card_names_voices_data_codec_and_conditions(exported: Path) -> None:
    header, text = split_card((exported / "README.md").read_text())
    assert header["pipeline_tag"] == "text-to-speech" and header["language"] == ["en"] and "base_model" not in header
    assert "**Consent.**" in text and "| ann | english | 2 | 0.0 |" in text and "| bob | english | 2 | 0.0 |" in text
    assert "Base: base." in text and "Trained: all weights, 60 steps at a learning rate of 0.01; supervised: speech." in text
    assert tiny_models.FAMILY.codec in text and "--speaker ann" in text and str(exported.parent) not in text


def test_the_card_names_a_base_on_the_hub_with_its_commit() -> None:
    """The config may have a branch or nothing; the checkpoint has the commit."""
    speakers = [
        {"name": "ann", "language": "english", "clips": 2, "seconds": 60.0},
        {"name": "bob", "language": "auto", "clips": 1, "seconds": 6.0},
    ]
    voices = {
        "family": tiny_models.FAMILY.model_dump(),
        "supervise": "speech",
        "speakers": speakers,
        "data": {"name": "me/train.jsonl", "sha256": "ab" * 32, "clips": 3},
        "base": {"name": HUB_NAME, "revision": None},
        "codec": {"source": None, "digest": "cd" * 32},
    }
    lora = {"rank": 8, "alpha": 16.0, "dora": False}
    base = {"source": HUB_NAME, "revision": COMMIT}
    state = {"base": base, "lora": lora, "added": [], "quantization": None, "step": 1200}
    header, text = split_card(
        write_model_card(
            state, "train:\n  lr: 2.0e-4\n", CodecLmState.model_validate(voices), {"license": "apache-2.0", "language": ["fr"]}
        )
    )
    assert (header["base_model"], header["license"], header["language"]) == (HUB_NAME, "apache-2.0", ["en"])
    assert f"Base: {HUB_NAME}@{COMMIT}." in text
    voices["speakers"] = [{**speakers[0], "name": "ann o'neill"}]
    assert """ --speaker 'ann o'"'"'neill' --text""" in write_model_card(
        state, "train:\n  lr: 2.0e-4\n", CodecLmState.model_validate(voices), {}
    )
    assert "Trained: LoRA of rank 8, alpha 16, merged, 1,200 steps at a learning rate of 0.0002; supervised: speech." in text
