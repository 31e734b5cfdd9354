"""What is packed says what it is; the chain that packs it is tried in test_train_codec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_prep.audio.waveform import read_audio
from data_prep.audio_codecs.qwen3_tts import find_codec, load_codec
from finetune.errors import UserError
from recipes.voice_clone.studio.codec import measure_codec, pack_codec
from recipes.voice_clone.studio.codec.training_clips import make_clip

SAMPLE = Path(pack_codec.__file__).parents[2] / "sample"


def figures(words: dict[str, dict[str, float]]) -> dict[str, Any]:
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
    card = pack_codec.card(figures({"pocketsphinx": {"originals": 0.02, "reconstructions": 0.07}}))
    assert "A demo model. It knows 7 synthetic voices" in card[:60]
    assert "| word error rate, pocketsphinx | 2.0% of originals, 7.0% of reconstructions |" in card
    assert "decoder after 4000 steps" in card


def test_what_was_not_measured_is_not_claimed() -> None:
    assert "| word error rate | not measured |" in pack_codec.card(figures({}))


def test_an_unfinished_training_is_told_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "books.safetensors").touch()
    with pytest.raises(UserError, match=r"encoder.safetensors is missing; train it first"):
        pack_codec.assembled(tmp_path)


def test_the_shipped_codec_keeps_the_sound_of_voices_that_it_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On sentences of no grammar, in the embedded recordings of two of its voices: far nearer than their average sound."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tokenizer = load_codec(find_codec("codec-demo"), "cpu")
    for path in (SAMPLE / "slt" / "harbour.flac", SAMPLE / "rms" / "workshop.wav"):
        audio = read_audio(path, 24000)
        clip = make_clip(audio.samples[: 6 * 24000], "", "")
        found = measure_codec.distances([clip], [make_clip(measure_codec.reconstructed(tokenizer, clip.wave), "", "")])
        assert found["all"] < 0.6 * found["mean_frame"]
