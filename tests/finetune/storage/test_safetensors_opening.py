"""A weights file that lies is an error with its path, and random numbers never take the place of missing weights."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import overtone.finetune.__main__
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import loading
from overtone.finetune.storage.safetensors_opening import open_weights
from overtone.recipes.language import answer_generation
from overtone.recipes.llm_sft.model import tiny_checkpoint

SOUND: dict[str, Any] = {
    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "b": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
}
LIES: dict[str, Any] = {
    "overlapping": {**SOUND, "b": {**SOUND["b"], "data_offsets": [0, 8]}},
    "beyond the file": {**SOUND, "b": {**SOUND["b"], "data_offsets": [8, 2**60]}},
    "negative": {**SOUND, "a": {**SOUND["a"], "data_offsets": [-8, 8]}},
    "huge shape": {**SOUND, "b": {**SOUND["b"], "shape": [2**40, 2**40]}},
    "unknown type": {**SOUND, "b": {**SOUND["b"], "dtype": "F999"}},
    "gap": {"b": SOUND["b"]},
    "deep": [[[[]]]],
}


def write(path: Path, header: Any, length: int | None = None) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(16))


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_header_is_an_error_with_the_path(lie: str, tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", LIES[lie])
    for read in (loading.tensor_files, loading.tensor_shapes):
        with pytest.raises(UserError, match=rf"{tmp_path}/model.safetensors cannot be read \(.*\); download the model again"):
            read(tmp_path)
    write(tmp_path / "model.safetensors", SOUND)
    assert loading.tensor_shapes(tmp_path) == {"a": (2,), "b": (2,)}


@pytest.mark.parametrize("length", [0, 2, 99 * 2**20, 2**62])
def test_a_wrong_length_of_the_header_is_an_error(length: int, tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", SOUND, length)
    with pytest.raises(UserError, match="model.safetensors cannot be read"):
        loading.tensor_files(tmp_path)


def test_an_error_of_something_else_meanwhile_keeps_its_name(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", SOUND)
    with pytest.raises(OSError, match="of the disk"), open_weights(tmp_path / "model.safetensors"):
        raise OSError("of the disk")
    with pytest.raises(UserError, match="cannot be read"), open_weights(tmp_path / "model.safetensors") as file:
        file.get_tensor("c")


def test_a_longest_text_that_is_no_number_is_an_error_of_its_key(tmp_path: Path) -> None:
    """Found by hostile model folders."""
    folder = tiny_checkpoint.build(tmp_path / "model")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": []}))
    with pytest.raises(UserError, match=r"tokenizer_config.json: model_max_length: \[\], expected a number; download the model again"):
        answer_generation.load_model(folder)


def test_generation_refuses_weights_that_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """transformers puts random numbers in their place, and continues."""
    folder = tiny_checkpoint.build(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights.pop(next(name for name in weights if name.endswith("q_proj.weight")))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=rf"--model {folder}: the model file lacks 1 weights \(.*q_proj.weight\); download"):
        answer_generation.load_model(folder)
    save_file({"other": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
    assert overtone.finetune.__main__.main(["generate", "--model", str(folder), "--recipe", "llm_sft", "--prompt", "hi"]) == 2
    assert "lacks" in capsys.readouterr().err
    shutil.rmtree(folder)
