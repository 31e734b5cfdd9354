"""The tiny checkpoint: every file that the stock classes read, the same bytes for the same seed, and a codec that works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.finetune.errors import UserError
from overtone.recipes.csm.model import tiny_checkpoint
from overtone.recipes.csm.model.tiny_checkpoint import BASE_VOCABULARY, PRETOKENIZE, SPECIAL
from overtone.recipes.tiny_checkpoints import train_byte_tokenizer


def test_the_same_seed_gives_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    again, other = tiny_checkpoint.build(tmp_path / "again"), tiny_checkpoint.build(tmp_path / "other", seed=1)
    names = sorted(path.name for path in tiny.iterdir())
    assert len(names) == 7
    assert all((tiny / name).read_bytes() == (again / name).read_bytes() for name in names)
    assert (tiny / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_an_existing_folder_is_kept(tiny: Path) -> None:
    with pytest.raises(UserError, match="exists already"):
        tiny_checkpoint.build(tiny)


def test_the_codec_gives_different_codes_to_different_sounds(stock: Any) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        codes = stock.codec_model.encode(torch.randn(2, 1, 1920 * 4)).audio_codes
        assert codes.shape == (2, tiny_checkpoint.CODEBOOKS, 4) and len(codes.unique()) > 4
        assert stock.codec_model.decode(codes).audio_values.shape[-1] == 1920 * 4


def test_numbers_up_to_999_are_one_piece() -> None:
    tokenizer = train_byte_tokenizer(PRETOKENIZE, ["[123] [999] [12]"] * 50, BASE_VOCABULARY, SPECIAL)
    assert [len(tokenizer.encode(f"{number}").tokens) for number in (7, 123, 999)] == [1, 1, 1]


def test_the_command_builds_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_checkpoint.main([str(tmp_path / "made")]) == 0
    assert (tmp_path / "made" / "config.json").is_file() and "random weights" in capsys.readouterr().out
