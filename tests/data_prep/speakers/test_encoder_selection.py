"""Which encoder a name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.data_prep.audio_codecs.qwen3_tts_speaker_encoder import QwenSpeakerEncoder
from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.data_prep.speakers.encoder_selection import find_installed_encoder, open_voice_encoder
from overtone.data_prep.speakers.resemblyzer_encoder import ResemblyzerEncoder
from overtone.finetune.errors import UserError


def test_resemblyzer_is_its_installed_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weights = tmp_path / "pretrained.pt"
    weights.write_bytes(b"weights")
    monkeypatch.setattr(resemblyzer_encoder, "find_weights", lambda: weights)
    assert open_voice_encoder("--speaker-check", "resemblyzer") == find_installed_encoder() == ResemblyzerEncoder(weights)
    first = ResemblyzerEncoder(weights).digest
    weights.write_bytes(b"others")
    assert ResemblyzerEncoder(weights).digest != first


def test_without_the_package_the_error_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resemblyzer_encoder, "find_weights", lambda: None)
    assert find_installed_encoder() is None
    with pytest.raises(UserError, match=r"--speaker-check resemblyzer: .* run `pip install --no-deps resemblyzer"):
        open_voice_encoder("--speaker-check", "resemblyzer")


def test_a_base_model_has_its_own_encoder(nano: Path) -> None:
    assert isinstance(open_voice_encoder("--speaker-check", str(nano)), QwenSpeakerEncoder)
