"""Speaker vectors equal those of the stock encoder, are averaged in fp32, and are computed again only after a change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file

from overtone.data_prep.audio_codecs import qwen3_tts_speaker_encoder
from overtone.finetune.errors import UserError
from overtone.finetune.storage import remote
from overtone.recipes.qwen3_tts.inference import stock_qwen_tts
from overtone.recipes.voice_clone.model import speaker_vectors
from overtone.recipes.voice_clone.model.dataset_speakers import DatasetSpeaker
from overtone.recipes.voice_clone.recipe import RECIPE


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The clips that were encoded."""
    clips: list[Path] = []
    read = speaker_vectors.read_reference_clip

    def record(path: Path) -> np.ndarray:
        clips.append(path)
        return read(path)

    monkeypatch.setattr(speaker_vectors, "read_reference_clip", record)
    yield clips


def test_the_vector_is_the_mean_of_the_stock_encoder(nano: Path, tmp_path: Path, corpus: Any, rows_of: Any) -> None:
    rows = rows_of({"Anna": "high.flac"})
    rows[1]["audio"] = "low.flac"
    config = corpus(tmp_path / "data", rows).config(nano)
    RECIPE.prepare(config)
    tts = stock_qwen_tts.load(nano).model
    waves = [soundfile.read(tmp_path / "data" / name, dtype="float32")[0] for name in ("high.flac", "low.flac")]
    expected = torch.stack([tts.extract_speaker_embedding(wave, 24000) for wave in waves]).mean(0)
    found = speaker_vectors.load_speaker_vectors(config.run.dir).vectors
    assert found.shape == (1, 32) and found.dtype == torch.float32
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-5)


def test_reference_clips_of_remote_data_are_downloaded(nano: Path, tmp_path: Path, corpus: Any, rows_of: Any) -> None:
    here = corpus(tmp_path / "data", rows_of({"Anna": "high.flac", "Bert": "low.flac"})).config(nano)
    RECIPE.prepare(here)
    expected = speaker_vectors.load_speaker_vectors(here.run.dir).vectors
    cache = tmp_path / "other" / "cache" / "elsewhere"
    fetched = remote.fetch(f"file://{here.data.train}", cache)
    moved = {"data": here.data.model_copy(update={"train": fetched}), "run": here.run.model_copy(update={"dir": tmp_path / "other"})}
    there = here.model_copy(update=moved)
    RECIPE.prepare(there)
    assert speaker_vectors.load_speaker_vectors(there.run.dir).vectors.equal(expected)
    (tmp_path / "data").rename(tmp_path / "gone")
    (tmp_path / "other" / "cache" / "speakers.safetensors").unlink()
    RECIPE.prepare(there)
    assert speaker_vectors.load_speaker_vectors(there.run.dir).vectors.equal(expected)


def test_different_voices_get_different_vectors(fresh: Any) -> None:
    anna, bert = fresh.loaded.buffers["speaker_vectors"]
    assert (anna - bert).norm() > 0.05 * anna.norm()


@pytest.mark.parametrize("rate", [16000, 44100])
def test_other_rates_and_stereo_are_resampled(rate: int, nano: Path, tmp_path: Path) -> None:
    def tone(rate: int) -> np.ndarray:
        time = np.arange(rate * 2) / rate
        return (0.3 * np.sin(2 * np.pi * 220 * time) + 0.1 * np.sin(2 * np.pi * 1500 * time)).astype(np.float32)

    soundfile.write(tmp_path / "a.wav", tone(24000), 24000, subtype="FLOAT")
    soundfile.write(tmp_path / "b.wav", np.stack([tone(rate), tone(rate)], axis=1), rate, subtype="FLOAT")
    assert len(speaker_vectors.read_reference_clip(tmp_path / "b.wav")) == pytest.approx(48000, abs=1)
    encoder = qwen3_tts_speaker_encoder.load_encoder(nano)
    a, b = (
        torch.from_numpy(qwen3_tts_speaker_encoder.embed_clip(encoder, speaker_vectors.read_reference_clip(tmp_path / name)))
        for name in ("a.wav", "b.wav")
    )
    assert (a - b).norm() < 0.05 * a.norm()


@pytest.fixture(scope="module")
def stock_model(nano: Path) -> Any:
    return stock_qwen_tts.load(nano)


@pytest.mark.parametrize("rate", [16000, 22050, 24000, 44100, 48000])
@pytest.mark.parametrize("channels", [1, 2])
def test_the_vector_of_a_file_equals_that_of_the_stock_package(
    rate: int, channels: int, nano: Path, tmp_path: Path, stock_model: Any
) -> None:
    """Measured: no difference. Without the clip's offset, or with another resampler, the difference was up to 0.05 for these sounds."""
    chance = np.random.default_rng(rate)
    voice = 0.1 * chance.standard_normal((rate + 77, 1)).cumsum(axis=0) / np.sqrt(rate)
    sound = 0.005 + voice * np.linspace(
        1, 0.6, channels
    )  # one voice, nearer to the left microphone: the mean of both, as the package takes
    soundfile.write(tmp_path / "clip.flac", sound, rate, subtype="PCM_16")
    assert abs(soundfile.read(tmp_path / "clip.flac")[0].mean()) > 1e-3
    (theirs,) = stock_model.create_voice_clone_prompt(ref_audio=str(tmp_path / "clip.flac"), x_vector_only_mode=True)
    ours = speaker_vectors.compute_mean_vector(qwen3_tts_speaker_encoder.load_encoder(nano), [tmp_path / "clip.flac"])
    torch.testing.assert_close(ours, theirs.ref_spk_embedding, rtol=0, atol=1e-6)


def test_vectors_are_computed_once_and_again_after_a_change(
    nano: Path, tmp_path: Path, corpus: Any, rows_of: Any, encoded: list[Path]
) -> None:
    made = corpus(tmp_path / "data", rows_of({"Anna": "high.flac", "Bert": "low.flac"}))
    config = made.config(nano)
    RECIPE.prepare(config)
    first = speaker_vectors.load_speaker_vectors(config.run.dir)
    assert [path.name for path in encoded] == ["high.flac", "low.flac"]
    encoded.clear()
    RECIPE.prepare(config)
    assert encoded == []

    made.train.write_text(made.train.read_text() + made.train.read_text().splitlines()[0] + "\n")
    RECIPE.prepare(config)  # more clips of the same reference: new numbers, same vectors
    assert encoded == [] and torch.equal(speaker_vectors.load_speaker_vectors(config.run.dir).vectors, first.vectors)
    assert speaker_vectors.load_speaker_vectors(config.run.dir).state.speakers[0].clips == 3 and first.state.speakers[0].clips == 2

    soundfile.write(tmp_path / "data" / "low.flac", np.random.RandomState(0).randn(24000) * 0.1, 24000)
    RECIPE.prepare(config)
    changed = speaker_vectors.load_speaker_vectors(config.run.dir).vectors
    assert len(encoded) == 2 and torch.equal(changed[0], first.vectors[0]) and not torch.equal(changed[1], first.vectors[1])


def test_the_cache_key_depends_on_the_encoder_only(nano: Path, tmp_path: Path) -> None:
    tensors = load_file(nano / "model.safetensors")
    for name, folder in (("talker.codec_head.weight", "same"), ("speaker_encoder.fc.bias", "other")):
        (tmp_path / folder).mkdir()
        save_file({**tensors, name: tensors[name] + 1}, tmp_path / folder / "model.safetensors")
    keys = [speaker_vectors.compute_cache_key(folder, {}) for folder in (nano, tmp_path / "same", tmp_path / "other")]
    assert keys[0] == keys[1] != keys[2]


def test_a_damaged_cache_is_computed_again(nano: Path, tmp_path: Path, corpus: Any, rows_of: Any, encoded: list[Path]) -> None:
    config = corpus(tmp_path / "data", rows_of({"Anna": "high.flac"})).config(nano)
    with pytest.raises(UserError, match="is missing or damaged"):
        RECIPE.load(config)
    RECIPE.prepare(config)
    (config.run.dir / "cache" / "speakers.safetensors").write_bytes(b"half")
    RECIPE.prepare(config)
    assert len(encoded) == 2 and speaker_vectors.load_speaker_vectors(config.run.dir).vectors.shape == (1, 32)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"no sound", "is not usable"), (None, "No such file"), (1000, "lasts 0.04 s, but the speaker encoder needs 0.25 s")],
)
def test_a_bad_reference_clip_is_reported(
    content: bytes | int | None, message: str, nano: Path, tmp_path: Path, corpus: Any, rows_of: Any
) -> None:
    made = corpus(tmp_path / "data", rows_of({"Anna": "clip.wav"}))
    if isinstance(content, bytes):
        (tmp_path / "data" / "clip.wav").write_bytes(content)
    elif content:
        soundfile.write(tmp_path / "data" / "clip.wav", np.random.RandomState(0).randn(content) * 0.1, 24000)
    with pytest.raises(UserError, match=message) as caught:
        RECIPE.prepare(made.config(nano))
    assert "clip.wav" in str(caught.value)


def test_only_base_models_are_trained(fresh: Any, export: Any, tmp_path: Path, corpus: Any, rows_of: Any) -> None:
    exported = export(fresh, "custom_voice", tmp_path / "custom_voice")
    config = corpus(tmp_path / "data", rows_of({"Anna": "high.flac"})).config(exported)
    with pytest.raises(UserError, match=r"tts_model_type 'custom_voice'.*--format base"):
        RECIPE.prepare(config)


def test_a_plan_reports_missing_and_damaged_reference_clips(nano: Path, tmp_path: Path, corpus: Any, rows_of: Any) -> None:
    rows = rows_of({"Anna": "high.flac", "Bert": "low.flac"})
    made = corpus(tmp_path / "data", rows)
    sketched = RECIPE.sketch(made.config(nano))
    assert set(sketched.processor().speakers) == {"anna", "bert"}
    (tmp_path / "data" / "high.flac").unlink()
    low = tmp_path / "data" / "low.flac"
    low.write_bytes(low.read_bytes()[:200])
    with pytest.raises(UserError) as caught:
        sketched.processor()
    message = str(caught.value)
    assert message.startswith("2 bad reference clips:") and "high.flac" in message and "low.flac" in message


def test_a_plan_only_checks_that_further_reference_clips_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaker_vectors, "DECODED_CLIPS", 0)
    (tmp_path / "there.flac").write_bytes(b"not listened to")
    there = DatasetSpeaker("anna", named_references={tmp_path / "there.flac": None})
    speaker_vectors.check_reference_clips([there], 8)
    with pytest.raises(UserError, match=r"1 bad reference clips:\n  reference clip .*gone\.flac: No such file"):
        speaker_vectors.check_reference_clips([there, DatasetSpeaker("bert", named_references={tmp_path / "gone.flac": None})], 8)
