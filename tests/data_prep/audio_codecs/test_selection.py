"""The adapter of a model is chosen by its config, before any weights are downloaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from overtone.data_prep.audio_codecs.qwen3_tts_codec import QwenCodec, encode_clips, load_codec
from overtone.data_prep.audio_codecs.qwen3_tts_speaker_encoder import QwenSpeakerEncoder
from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER
from overtone.data_prep.audio_codecs.selection import CODECS, DEFAULT_MODEL, open_codec, open_speaker_encoder, suggest_other_models
from overtone.finetune.errors import UserError


def test_the_codec_of_a_qwen_model(nano: Path) -> None:
    codec = open_codec(str(nano))
    assert codec == QwenCodec(nano / CODEC_FOLDER) and codec.model == nano
    assert (codec.sample_rate, codec.samples_per_frame, codec.frame_rate) == (24_000, 1920, 12.5)
    assert (codec.codebooks, codec.codebook_size) == (16, 64)


def test_the_codec_encodes_and_decodes(nano: Path) -> None:
    clip = np.random.default_rng(0).uniform(-0.3, 0.3, 5000).astype(np.float32)
    loaded = open_codec(str(nano)).load("cpu")
    (codes,) = loaded.encode([clip])
    assert np.array_equal(codes, encode_clips(load_codec(nano / CODEC_FOLDER, "cpu"), [clip])[0]) and codes.shape == (3, 16)
    wave = loaded.decode(codes)
    assert wave.dtype == np.float32 and wave.shape == (3 * 1920,) and np.abs(wave).max() <= 1


def test_a_worker_needs_the_weights_and_memory_for_the_audio(nano: Path) -> None:
    codec = open_codec(str(nano))
    assert codec.estimate_worker_bytes(0) == (nano / CODEC_FOLDER / "model.safetensors").stat().st_size
    assert codec.estimate_worker_bytes(60) - codec.estimate_worker_bytes(0) == 60 * 24_000 * 64 * 4 * 4


def test_the_speaker_encoder_of_a_qwen_model(nano: Path) -> None:
    encoder = open_speaker_encoder(str(nano), "--speaker-check")
    assert isinstance(encoder, QwenSpeakerEncoder) and encoder.sample_rate == 24_000
    loaded = encoder.load()
    assert loaded.embed(np.zeros(24_000, np.float32)).shape == (loaded.dimensions,) == (32,)


SUPPORTED = (
    "give a model with a supported codec: Qwen3-TTS 12 Hz (Qwen/Qwen3-TTS-12Hz-1.7B-Base); SNAC in an exported model; "
    "CSM (sesame/csm-1b); Mimi (kyutai/mimi); SNAC, for Orpheus (hubertsiuzdak/snac_24khz)"
)


@pytest.mark.parametrize("kind", ["encodec", None, 3, ["qwen3_tts_tokenizer_12hz"]])
def test_an_unknown_model_is_refused_with_the_supported_ones(tmp_path: Path, kind: object) -> None:
    (tmp_path / CODEC_FOLDER).mkdir()
    for folder in (tmp_path, tmp_path / CODEC_FOLDER):
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(UserError) as caught:
        open_codec(str(tmp_path))
    assert str(caught.value) == (
        f"--model {tmp_path}: {tmp_path}/speech_tokenizer/config.json: model_type {kind!r} is not one whose codec is supported; {SUPPORTED}"
    )
    with pytest.raises(UserError, match=r"--speaker-check .*is not one whose speaker encoder is supported; .*: Qwen3-TTS Base"):
        open_speaker_encoder(str(tmp_path), "--speaker-check")


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"--model {tmp_path}: .*speech_tokenizer/config.json: no model there .*: Qwen3-TTS 12 Hz"):
        open_codec(str(tmp_path))


def test_from_the_hub_the_config_comes_first_and_then_the_codec_of_the_same_commit(
    nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    snapshot, calls = tmp_path / "snapshots" / ("0" * 40), []
    snapshot.parent.mkdir()
    snapshot.symlink_to(nano)

    def hub(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        calls.append((name, revision, allow_patterns))
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    assert open_codec("a/voice").folder == snapshot / CODEC_FOLDER
    assert calls == [
        ("a/voice", None, ["speech_tokenizer/config.json", "speech_codec/config.json", "config.json"]),
        ("a/voice", "0" * 40, ["speech_tokenizer/*.json", "speech_tokenizer/*.safetensors"]),
    ]


def test_every_other_released_codec_is_suggested() -> None:
    suggested = suggest_other_models()
    assert DEFAULT_MODEL not in suggested and suggested.startswith("for a model with another codec: --model ")
    for adapter in CODECS:
        assert adapter.example in ("", DEFAULT_MODEL) or f"{adapter.example} ({adapter.name})" in suggested
    assert suggested.count(" or ") >= 2
