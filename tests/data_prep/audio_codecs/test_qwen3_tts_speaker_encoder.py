"""The speaker encoder of a tiny model: real classes, random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.audio_codecs import qwen3_tts_speaker_encoder
from overtone.data_prep.audio_codecs.qwen_tts_import import import_qwen_tts
from overtone.finetune.errors import UserError

OPTION = "--speaker-check"


def changed(nano: Path, to: Path, **config: object) -> Path:
    """The model with another config.json."""
    to.mkdir()
    shutil.copy(nano / "model.safetensors", to)
    (to / "config.json").write_text(json.dumps(json.loads((nano / "config.json").read_text()) | config))
    return to


@pytest.fixture(scope="module")
def clip() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, 2 * MASTER_RATE).astype(np.float32)


def test_a_vector_equals_that_of_the_stock_model_each_time(nano: Path, clip: np.ndarray) -> None:
    encoder = qwen3_tts_speaker_encoder.load_encoder(nano)
    found = qwen3_tts_speaker_encoder.embed_clip(encoder, clip)
    stock = import_qwen_tts().Qwen3TTSModel.from_pretrained(str(nano), dtype=torch.float32).model
    np.testing.assert_array_equal(found, stock.extract_speaker_embedding(clip, MASTER_RATE).numpy())
    np.testing.assert_array_equal(found, qwen3_tts_speaker_encoder.embed_clip(qwen3_tts_speaker_encoder.load_encoder(nano), clip))
    assert found.shape == (32,) and found.dtype == np.float32
    assert not np.allclose(found, qwen3_tts_speaker_encoder.embed_clip(encoder, -0.1 * np.sign(clip)))


def test_a_vector_is_computed_without_tf32(nano: Path, clip: np.ndarray) -> None:
    """Or a GPU would give another vector under the same key."""
    encoder, allowed = qwen3_tts_speaker_encoder.load_encoder(nano), []
    encoder.register_forward_pre_hook(lambda *_: allowed.append(torch.backends.cudnn.allow_tf32))
    qwen3_tts_speaker_encoder.embed_clip(encoder, clip)
    assert allowed == [False] and torch.backends.cudnn.allow_tf32


def test_exactly_the_weights_of_the_encoder_are_read(nano: Path) -> None:
    whole = load_file(nano / "model.safetensors")
    expected = {name.removeprefix("speaker_encoder."): tensor for name, tensor in whole.items() if name.startswith("speaker_encoder.")}
    found = qwen3_tts_speaker_encoder.read_encoder_weights(nano)
    assert found.keys() == expected.keys()
    assert len(expected) > 50
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_digest_depends_on_the_encoder_alone(nano: Path, tmp_path: Path) -> None:
    tensors = load_file(nano / "model.safetensors")
    for name, folder in (("talker.codec_head.weight", "trained"), ("speaker_encoder.fc.bias", "other")):
        save_file({**tensors, name: tensors[name] + 1}, changed(nano, tmp_path / folder, note=1) / "model.safetensors")
    shape = json.loads((nano / "config.json").read_text())["speaker_encoder_config"]
    changed(nano, tmp_path / "shape", speaker_encoder_config=shape | {"enc_dilations": [1, 1, 1, 1, 1]})
    same, trained, other, shaped = (
        qwen3_tts_speaker_encoder.open_qwen_speaker_encoder(OPTION, str(one)).digest
        for one in (nano, *map(tmp_path.joinpath, ("trained", "other", "shape")))
    )
    assert same == trained
    assert len({same, other, shaped}) == 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            '{"model_type": "qwen3_tts", "tts_model_type": "custom_voice"}',
            r"tts_model_type 'custom_voice'\); only those have .* --format base",
        ),
        ('{"model_type": "whisper"}', "model_type 'whisper' is not a Qwen3-TTS model"),
        ("[]", "contains a list instead of a JSON object"),
        ("{", "config.json is not JSON"),
        (None, "config.json: no model there .No such file"),
    ],
)
def test_a_model_without_an_encoder_is_named(config: str | None, message: str, tmp_path: Path) -> None:
    if config:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserError, match=f"{OPTION} {tmp_path}: .*{message}"):
        qwen3_tts_speaker_encoder.open_qwen_speaker_encoder(OPTION, str(tmp_path))


def test_damaged_weights_and_weights_without_an_encoder_are_refused(nano: Path, tmp_path: Path) -> None:
    shutil.copy(nano / "config.json", tmp_path)
    with pytest.raises(UserError, match="its weights hold no speaker encoder"):
        qwen3_tts_speaker_encoder.open_qwen_speaker_encoder(OPTION, str(tmp_path))
    save_file({"talker.codec_head.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="its weights hold no speaker encoder"):
        qwen3_tts_speaker_encoder.open_qwen_speaker_encoder(OPTION, str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"half a download")
    with pytest.raises(UserError, match="model.safetensors cannot be read"):
        qwen3_tts_speaker_encoder.open_qwen_speaker_encoder(OPTION, str(tmp_path))


@pytest.mark.parametrize("shape", [None, {}, {"enc_channels": [8]}, {"enc_dim": 7}])
def test_weights_that_do_not_match_their_config_are_refused(shape: object, nano: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="weights and config.json do not fit"):
        qwen3_tts_speaker_encoder.load_encoder(changed(nano, tmp_path / "model", speaker_encoder_config=shape))


def test_the_config_is_downloaded_first_and_the_codec_never(nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = []

    def hub(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, *allow_patterns))
        return str(tmp_path / name)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    (tmp_path / "a").mkdir()
    changed(nano, tmp_path / "a" / "custom", tts_model_type="custom_voice")
    changed(nano, tmp_path / "a" / "base")
    with pytest.raises(UserError, match=f"{OPTION} a/custom: .*'custom_voice'"):
        qwen3_tts_speaker_encoder.open_qwen_speaker_encoder(OPTION, "a/custom")
    assert asked == [("a/custom", "config.json")]
    assert qwen3_tts_speaker_encoder.open_qwen_speaker_encoder(OPTION, "a/base").folder == tmp_path / "a" / "base"
    assert asked[1:] == [("a/base", "config.json"), ("a/base", "config.json", "model*.safetensors")]
