"""Speaker verification models of transformers as encoders, on a tiny model made from its config."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from overtone.data_prep.audio.waveform import SPEECH_RATE
from overtone.data_prep.speakers.encoder_selection import find_installed_encoder, open_voice_encoder
from overtone.data_prep.speakers.xvector_encoder import XVectorEncoder, open_xvector_encoder
from overtone.finetune.errors import UserError


@pytest.fixture(scope="module")
def wavlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Wav2Vec2FeatureExtractor, WavLMConfig, WavLMForXVector

    folder = tmp_path_factory.mktemp("models") / "tiny-wavlm"
    torch.manual_seed(0)
    config = WavLMConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=(8, 8), conv_kernel=(10, 8),
        conv_stride=(8, 8), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, tdnn_dim=(8, 8), tdnn_kernel=(3, 1),
        tdnn_dilation=(1, 1), xvector_output_dim=12, num_feat_extract_layers=2,
    )  # fmt: skip
    WavLMForXVector(config).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return folder


def test_a_model_with_an_x_vector_head_is_opened_by_its_folder(wavlm: Path) -> None:
    encoder = open_voice_encoder("--speaker-check", str(wavlm))
    assert isinstance(encoder, XVectorEncoder)
    loaded = encoder.load()
    wave = np.sin(np.arange(SPEECH_RATE) / 9).astype(np.float32)
    vector = loaded.embed(wave)
    assert vector.shape == (loaded.dimensions,) == (12,) and np.isfinite(vector).all() and vector.any()
    np.testing.assert_allclose(loaded.embed(wave), vector, atol=1e-6)


def test_the_digest_is_of_weights_and_config(wavlm: Path, tmp_path: Path) -> None:
    same, other = (Path(shutil.copytree(wavlm, tmp_path / name)) for name in ("same", "other"))
    (same / "README.md").write_text("A card.")
    config = other / "config.json"
    config.write_text(config.read_text().replace('"layerdrop": 0.1', '"layerdrop": 0.2'))
    digests = [open_xvector_encoder("--speaker-check", str(folder)).digest for folder in (wavlm, same, other)]
    assert digests[0] == digests[1] != digests[2]


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--speaker-check .*not a speaker verification model of transformers"):
        open_xvector_encoder("--speaker-check", str(tmp_path))
    assert find_installed_encoder() is None or open_voice_encoder("--speaker-check", "resemblyzer") == find_installed_encoder()


def test_missing_weights_are_refused_and_those_of_training_are_not_needed(wavlm: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(wavlm / "model.safetensors")
    for form in ("safetensors", "bin"):
        for part, ok in (("tdnn.0", False), ("masked_spec_embed", True)):
            folder = Path(shutil.copytree(wavlm, tmp_path / f"{form}-{part}"))
            (folder / "model.safetensors").unlink()
            left = {name: tensor for name, tensor in weights.items() if part not in name}
            assert len(left) < len(weights)
            if form == "bin":
                torch.save(left, folder / "pytorch_model.bin")
            else:
                save_file(left, folder / "model.safetensors", {"format": "pt"})
            if ok:
                open_xvector_encoder("--speaker-check", str(folder))
            else:
                with pytest.raises(UserError, match=r"lacks 2 weights \(tdnn.0.kernel.bias, tdnn.0.kernel.weight\)"):
                    open_xvector_encoder("--speaker-check", str(folder))
