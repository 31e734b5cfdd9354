"""The card of the packed codec, and the shipped codec; test_train_codec runs training and packing together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overtone.data_prep.audio.waveform import read_audio
from overtone.data_prep.audio_codecs.qwen3_tts_codec import find_codec, load_codec
from overtone.finetune.errors import UserError
from overtone.finetune.storage import demo_models
from workshop.demo_models.codec import measure_codec, pack_codec
from workshop.demo_models.codec.training_clips import make_clip

SAMPLE = demo_models.data_folder() / "sample"


def figures(words: dict[str, dict[str, float]]) -> dict[str, Any]:
    return {
        "steps": {"encoder": 2500, "wave": 4000},
        "clips": 112,
        "seconds": 360.0,
        "mel_cepstral_distance_db": {"all": 2.5, "mean_frame": 8.6},
        "pitch_error_cents": 45.0,
        "delay_ms": 20,
        "speaker_accuracy": {"originals": 1.0, "reconstructions": 0.99},
        "word_error_rate": words,
    }


def test_the_card_starts_with_a_warning_and_has_the_figures() -> None:
    card = pack_codec.write_card(figures({"pocketsphinx": {"originals": 0.02, "reconstructions": 0.07}}))
    assert "A demo model. It knows 7 synthetic voices" in card[:60]
    assert "| word error rate, pocketsphinx | 2.0% of originals, 7.0% of reconstructions |" in card
    assert "decoder after 4000 steps" in card
    assert "| decoded audio is late by | 20 ms |" in card


def test_the_card_says_if_the_wer_was_not_measured() -> None:
    assert "| word error rate | not measured |" in pack_codec.write_card(figures({}))


def test_an_unfinished_training_is_reported_with_its_missing_part(tmp_path: Path) -> None:
    (tmp_path / "books.safetensors").touch()
    with pytest.raises(UserError, match=r"encoder.safetensors is missing; train it first"):
        pack_codec.assemble_model(tmp_path)


def test_the_shipped_codec_preserves_voices_that_it_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On ordinary sentences, in the embedded recordings of two of its voices: much closer than their average sound."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tokenizer = load_codec(find_codec("codec-demo"), "cpu")
    for path in (SAMPLE / "slt" / "harbour.flac", SAMPLE / "rms" / "workshop.wav"):
        audio = read_audio(path, 24000)
        clip = make_clip(audio.samples[: 6 * 24000], "", "")
        found = measure_codec.measure_distances([clip], [make_clip(measure_codec.reconstruct(tokenizer, clip.wave), "", "")])
        assert found["all"] < 0.6 * found["mean_frame"]
