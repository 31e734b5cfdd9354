"""The speech tokenizer of a tiny model: real classes, random weights."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from overtone.data_prep.audio_codecs.interface import CodecError
from overtone.data_prep.audio_codecs.qwen3_tts_codec import RELEASED_FORMAT, compute_codec_digest, encode_clips, find_codec, load_codec
from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER
from overtone.finetune.errors import UserError


@pytest.fixture(scope="module")
def tokenizer(nano):
    return load_codec(find_codec(str(nano)), "cpu")


def noise(samples: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.3, 0.3, samples).astype(np.float32)


LENGTHS = (1, 1919, 1920, 1921, 30_000, 48_000, 71_111)


def test_codes_do_not_depend_on_the_batch(tokenizer) -> None:
    clips = [noise(length, seed) for seed, length in enumerate(LENGTHS)]
    together = encode_clips(tokenizer, clips)
    for clip, codes in zip(clips, together, strict=True):
        (alone,) = encode_clips(tokenizer, [clip])
        assert codes.shape == (RELEASED_FORMAT.count_frames(len(clip)), 16)
        assert codes.dtype == np.uint16
        assert np.array_equal(codes, alone)
    assert np.unique(together[-1]).size > 16


def test_a_partial_frame_counts_as_a_frame() -> None:
    assert [RELEASED_FORMAT.count_frames(length) for length in LENGTHS] == [1, 1, 1, 2, 16, 25, 38]


def answering(codes: torch.Tensor):
    """A tokenizer that gives these codes for one clip."""
    config = SimpleNamespace(encoder_config=SimpleNamespace(codebook_size=64))
    return SimpleNamespace(config=config, encode=lambda clips, sr: SimpleNamespace(audio_codes=[codes]))


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (torch.zeros(3, 16, dtype=torch.long), "expected (2, 16)"),
        (torch.zeros(2, 15, dtype=torch.long), "expected (2, 16)"),
        (torch.full((2, 16), 64), "do not fit a codebook of 64"),
        (torch.full((2, 16), -1), "do not fit a codebook of 64"),
    ],
)
def test_codes_of_the_wrong_shape_or_range_are_refused(codes, message) -> None:
    with pytest.raises(CodecError) as caught:
        encode_clips(answering(codes), [noise(3000, 0)])
    assert message in str(caught.value)


def test_codes_are_computed_without_tf32(tokenizer, monkeypatch) -> None:
    """Or a GPU would give other codes under the same key; cuDNN allows it unless it is switched off."""
    allowed = []
    encode_frames = tokenizer.model.encode
    monkeypatch.setattr(
        tokenizer.model, "encode", lambda *given, **named: allowed.append(torch.backends.cudnn.allow_tf32) or encode_frames(*given, **named)
    )
    encode_clips(tokenizer, [noise(3000, 0)])
    assert allowed == [False] and torch.backends.cudnn.allow_tf32


def test_the_digest_depends_on_the_content_alone(nano, tmp_path) -> None:
    copy = shutil.copytree(nano / "speech_tokenizer", tmp_path / "copy")
    assert compute_codec_digest(copy) == compute_codec_digest(nano / "speech_tokenizer")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"note": 1}))
    assert compute_codec_digest(copy) != compute_codec_digest(nano / "speech_tokenizer")
    (copy / "model.safetensors").unlink()
    with pytest.raises(UserError, match="holds no"):
        compute_codec_digest(copy)


def test_a_folder_without_a_supported_codec_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match="no speech_tokenizer/config"):
        find_codec(str(tmp_path))
    (tmp_path / "speech_tokenizer").mkdir()
    (tmp_path / "speech_tokenizer" / "config.json").write_text('{"model_type": "mimi"}')
    with pytest.raises(UserError, match="model_type 'mimi' is not the 12 Hz speech tokenizer of Qwen3-TTS"):
        find_codec(str(tmp_path))
    with pytest.raises(UserError, match="--model nowhere: no such folder"):
        find_codec("nowhere")


def test_a_damaged_tokenizer_is_refused(nano, tmp_path) -> None:
    copy = shutil.copytree(nano / "speech_tokenizer", tmp_path / "copy")
    (copy / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="model.safetensors cannot be read"):
        load_codec(copy, "cpu")


def test_only_the_tokenizer_is_downloaded(nano, monkeypatch) -> None:
    import huggingface_hub

    asked = []

    def hub(name, revision, allow_patterns):
        asked.append((name, revision, allow_patterns))
        return str(nano)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    assert find_codec("Qwen/Qwen3-TTS-12Hz-0.6B-Base") == nano / CODEC_FOLDER
    assert asked == [("Qwen/Qwen3-TTS-12Hz-0.6B-Base", None, ["speech_tokenizer/*.json", "speech_tokenizer/*.safetensors"])]
