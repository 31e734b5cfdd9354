"""The tiny checkpoint: the same seed gives the same bytes, builds are atomic, and the stock package loads it as a Base model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.recipes.qwen3_tts.inference import stock_qwen_tts
from overtone.recipes.voice_clone.model import tiny_checkpoint

LAYOUT = {
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors",
    "preprocessor_config.json",
    "speech_tokenizer/config.json",
    "speech_tokenizer/model.safetensors",
    "speech_tokenizer/preprocessor_config.json",
    "tokenizer_config.json",
    "vocab.json",
}


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): files.digest(path) for path in folder.rglob("*") if path.is_file()}


def test_same_seed_gives_the_same_bytes(nano: Path, tmp_path: Path) -> None:
    torch.manual_seed(123)  # whatever was drawn before
    again = contents(tiny_checkpoint.build(tmp_path / "again", "nano", seed=0))
    assert again == contents(nano) and set(again) == LAYOUT
    other = contents(tiny_checkpoint.build(tmp_path / "other", "nano", seed=1))
    assert {name for name in again if other[name] != again[name]} == {"model.safetensors", "speech_tokenizer/model.safetensors"}


def test_building_does_not_change_the_random_state(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    tiny_checkpoint.build(tmp_path / "nano")
    assert torch.equal(torch.rand(3), expected)


def test_the_command_refuses_to_overwrite_a_folder(nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_checkpoint.main([str(tmp_path / "made"), "--size", "nano"]) == 0
    assert "a model with random weights; train it before use" in capsys.readouterr().out
    with pytest.raises(UserError, match="exists already"):
        tiny_checkpoint.main([str(tmp_path / "made")])
    with pytest.raises(UserError, match="known sizes are nano, demo, mini"):
        tiny_checkpoint.build(tmp_path / "huge", "huge")


def test_a_failed_build_leaves_no_folder(tmp_path: Path) -> None:
    def fail(operation: str, path: Path) -> None:
        if operation == "rename":
            raise OSError("stopped")

    with files.watch(fail), pytest.raises(OSError, match="stopped"):
        tiny_checkpoint.build(tmp_path / "nano")
    assert not (tmp_path / "nano").exists()


def test_the_speech_tokenizer_encodes_and_decodes(nano: Path) -> None:
    codec = stock_qwen_tts.load(nano).model.speech_tokenizer
    time = np.arange(24000) / 24000
    wave = (0.3 * np.sin(2 * np.pi * 200 * time**2)).astype(np.float32)
    (codes,) = codec.encode([wave], sr=24000).audio_codes
    assert codes.shape == (13, 16) and codes.unique().numel() > 20 and int(codes.max()) < 64
    waves, rate = codec.decode([{"audio_codes": codes}])
    assert rate == 24000 and len(waves[0]) == 13 * 1920 and 0.05 < waves[0].std() < 0.5
