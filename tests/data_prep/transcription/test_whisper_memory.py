"""Memory of a Whisper without its weights equals that of the loaded model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import whisper
from transformers import WhisperConfig, WhisperForConditionalGeneration

from overtone.data_prep.transcription import whisper_engine, whisper_memory
from overtone.finetune.errors import UserError


def measure_halved(name: str) -> int:
    """Bytes of the loaded model with the precision that it has on a GPU."""
    model = whisper_engine.load_whisper(name, "cpu")
    whisper_engine.halve_products(model)
    return sum(tensor.nbytes for tensor in [*model.parameters(), model.encoder.positional_embedding, model.decoder.mask])


def test_a_file_takes_what_the_loaded_model_takes(whisper_that_says: Callable[[str], Path]) -> None:
    path = whisper_that_says("Four words of text.")
    counted = whisper_memory.count_gpu_bytes(str(path))
    assert counted == measure_halved(str(path)) < path.stat().st_size


def test_a_folder_of_transformers_takes_what_the_loaded_model_takes(tmp_path: Path) -> None:
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    WhisperForConditionalGeneration(WhisperConfig(**sizes, encoder_ffn_dim=64, decoder_ffn_dim=64)).save_pretrained(tmp_path / "mine")
    loaded = measure_halved(str(tmp_path / "mine"))
    (tmp_path / "mine" / "model.safetensors").unlink()
    assert whisper_memory.count_gpu_bytes(str(tmp_path / "mine")) == loaded


CARD = {"tiny": 39, "base": 74, "small": 244, "medium": 769, "large": 1550, "turbo": 809}
"""Millions of parameters, by https://github.com/openai/whisper/blob/main/model-card.md."""


@pytest.mark.parametrize("name", CARD)
def test_published_models_have_the_size_of_their_card(name: str) -> None:
    """In fp16 are the layers, in fp32 the embeddings."""
    counted, embeddings = whisper_memory.count_gpu_bytes(name), whisper_memory.list_published_dimensions(name)
    whole = embeddings["n_text_state"] * (embeddings["n_vocab"] + 448 + 1500)
    assert counted == pytest.approx(2 * CARD[name] * 1e6 + 2 * whole, rel=0.03)


def test_every_published_name_has_dimensions() -> None:
    found = {name: whisper_memory.list_published_dimensions(name) for name in whisper.available_models()}
    assert found["tiny.en"] == {**found["tiny"], "n_vocab": 51864} and found["turbo"] == {**found["large-v3"], "n_text_layer": 4}
    assert found["large"] == found["large-v3"] == {**found["large-v2"], "n_vocab": 51866, "n_mels": 128}


def test_a_file_without_dimensions_is_refused(tmp_path: Path) -> None:
    torch.save({"weights": torch.zeros(2)}, tmp_path / "other.pt")
    with pytest.raises(UserError, match=r"options.judge.asr .*other.pt: not a Whisper checkpoint \(no dims\)"):
        whisper_memory.count_gpu_bytes(str(tmp_path / "other.pt"), "options.judge.asr")
    torch.save({"dims": {"n_mels": 80}}, tmp_path / "few.pt")
    with pytest.raises(UserError, match=r"few.pt: not a Whisper checkpoint \(TypeError"):
        whisper_memory.count_gpu_bytes(str(tmp_path / "few.pt"))
    with pytest.raises(UserError, match="--whisper smal: neither a file nor one of"):
        whisper_memory.count_gpu_bytes("smal")
