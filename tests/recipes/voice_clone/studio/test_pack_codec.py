"""What is packed says what it is; the chain that packs it is tried in test_train_codec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finetune.errors import UserError
from recipes.voice_clone.studio import pack_codec


def figures(words: dict[str, float] | None) -> dict[str, Any]:
    return {
        "steps": {"encoder": 2500, "wave": 4000},
        "clips": 112,
        "seconds": 360.0,
        "mel_cepstral_distance_db": {"all": 2.5, "mean_frame": 8.6},
        "pitch_error_cents": 45.0,
        "speaker_accuracy": {"originals": 1.0, "reconstructions": 0.99},
        "word_error_rate": words,
    }


def test_the_card_warns_first_and_gives_the_figures() -> None:
    card = pack_codec.card(figures({"originals": 0.02, "reconstructions": 0.07}))
    assert "A demo model. It knows 7 synthetic voices" in card[:60]
    assert "2.0% of originals, 7.0% of reconstructions" in card
    assert "decoder after 4000 steps" in card


def test_what_was_not_measured_is_not_claimed() -> None:
    assert "| word error rate, whisper-demo-en | not measured |" in pack_codec.card(figures(None))


def test_an_unfinished_training_is_told_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "books.safetensors").touch()
    with pytest.raises(UserError, match=r"encoder.safetensors is missing; train it first"):
        pack_codec.assembled(tmp_path)
