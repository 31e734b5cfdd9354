"""The tiny Whisper is the same for the same seed, and stock transformers loads it with its tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import WhisperForConditionalGeneration, WhisperProcessor
from transformers.models.whisper.modeling_whisper import sinusoids
from whisper.tokenizer import get_tokenizer

from overtone.finetune.errors import UserError
from overtone.recipes.whisper.model import tiny_checkpoint

TEXTS = (" Good day, Asterisk: press 1 or 22!", "  two  spaces\nand a line", "naïve — “quoted” 東京 😀 don't I'll")


def test_the_seed_determines_the_bytes(base: Path, tmp_path: Path) -> None:
    same, other = (tiny_checkpoint.build(tmp_path / str(seed), seed=seed) / "model.safetensors" for seed in (0, 1))
    assert (base / "model.safetensors").read_bytes() == same.read_bytes() != other.read_bytes()
    with pytest.raises(UserError, match="exists already"):
        tiny_checkpoint.build(base)


def test_stock_transformers_loads_every_weight(base: Path) -> None:
    model, found = WhisperForConditionalGeneration.from_pretrained(base, output_loading_info=True)
    assert set(found["missing_keys"]) <= {"proj_out.weight"} and not found["unexpected_keys"]
    assert model.proj_out.weight is model.model.decoder.embed_tokens.weight
    torch.testing.assert_close(model.model.encoder.embed_positions.weight.data, sinusoids(1500, 32), rtol=0, atol=1e-5)


@pytest.mark.parametrize("multilingual", [True, False])
def test_the_tokenizer_gives_the_ids_of_openai_whisper(multilingual: bool, base: Path, english_base: Path) -> None:
    stock = WhisperProcessor.from_pretrained(base if multilingual else english_base).tokenizer
    for text in TEXTS:
        assert stock(text, add_special_tokens=False).input_ids == get_tokenizer(multilingual).encode(text)
    assert stock.convert_tokens_to_ids("<|notimestamps|>") == get_tokenizer(multilingual).no_timestamps
