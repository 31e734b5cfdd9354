"""Exports for openai-whisper and CTranslate2 compute what was trained, and a wrong one is refused."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import whisper
from safetensors.torch import load_file, save_file

from overtone.data_prep.transcription import whisper_engine
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import export
from overtone.recipes.whisper.exporting import format_conversion
from overtone.recipes.whisper.exporting.export_plan import read_defaults
from overtone.recipes.whisper.exporting.format_conversion import choose_type, compare, make_conversion

ctranslate2 = pytest.importorskip("ctranslate2")


def encode(name: str, mel: torch.Tensor) -> np.ndarray:
    model = whisper_engine.load_whisper(name, "cpu")
    if name.startswith("faster-whisper:"):
        return np.array(model.model.encode(ctranslate2.StorageView.from_array(mel.numpy())))
    with torch.no_grad():
        return model.encoder(mel).numpy()


@pytest.mark.parametrize(("form", "name"), [("openai-whisper", "{}/model.pt"), ("ctranslate2", "faster-whisper:{}")])
def test_what_data_preparation_loads_computes_the_same(form: str, name: str, full_run: Path, exported: Path, tmp_path: Path) -> None:
    folder = export.export(full_run, tmp_path / "export", form)
    mel = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(0)) * 0.3
    expected = encode(str(exported), mel)
    assert np.abs(encode(name.format(folder), mel) - expected).max() < 0.01 * np.abs(expected).max()
    assert (folder / "README.md").is_file() and not (folder / "model.safetensors").exists()
    assert read_defaults(folder) == read_defaults(exported)


def test_another_model_than_the_trained_one_is_refused(full_run: Path, exported: Path, tmp_path: Path) -> None:
    folder = export.export(full_run, tmp_path / "export", "ctranslate2", quantize="float32")
    converted = ctranslate2.models.Whisper(str(folder), device="cpu")
    compare(exported, converted, "float32")
    other = tmp_path / "other"
    shutil.copytree(exported, other)
    for part, message in (("decoder.layers.1.fc1", "its logits differ"), ("encoder.layers.0.fc1", "its encoder differ")):
        tensors = load_file(exported / "model.safetensors")
        tensors[f"model.{part}.weight"] *= 0.5
        save_file(tensors, other / "model.safetensors", {"format": "pt"})
        with pytest.raises(UserError, match=f"{message} by .* of the largest value. Nothing was exported"):
            compare(other, converted, "float32")


def test_a_value_that_the_type_cannot_hold_is_refused(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "large")
    tensors = load_file(exported / "model.safetensors")
    tensors["model.decoder.layer_norm.bias"][0] = 1e6
    save_file(tensors, tmp_path / "large" / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"decoder.ln.bias has values that f16 cannot hold. Nothing was exported; add --quantize f32"):
        format_conversion.convert_to_openai(tmp_path / "large", tmp_path, "f16")


def test_the_times_of_words_come_from_the_same_attention_heads(exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "export"
    shutil.copytree(exported, folder)
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**settings, "alignment_heads": [[1, 1]]}))
    format_conversion.convert_to_openai(folder, tmp_path, "f16")
    ours = whisper_engine.load_whisper(str(tmp_path / "model.pt"), "cpu")
    assert ours.alignment_heads.to_dense().nonzero().tolist() == [[1, 1]]
    stock = whisper.load_model(str(tmp_path / "model.pt"), "cpu")
    assert stock.alignment_heads.to_dense().nonzero().tolist() == [[1, 0], [1, 1]], "its default, the upper half of the layers"
    (dump,) = re.findall(r"call model\.set_alignment_heads\((b'.*')\)", capsys.readouterr().out)
    stock.set_alignment_heads(ast.literal_eval(dump))
    assert stock.alignment_heads.to_dense().nonzero().tolist() == [[1, 1]]


def test_a_file_that_does_not_read_back_is_refused(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = whisper_engine.load_whisper(str(exported), "cpu")
    with torch.no_grad():
        found.decoder.ln.bias += 1
    monkeypatch.setattr(format_conversion.whisper_engine, "load_whisper", lambda *_: found)
    with pytest.raises(UserError, match=r"model.pt: decoder.ln.bias does not read back"):
        format_conversion.convert_to_openai(exported, tmp_path, "f32")


def test_types_of_the_numbers_and_missing_files_are_explained(base: Path, tmp_path: Path) -> None:
    assert choose_type("ctranslate2", None) == "float16" and choose_type("openai-whisper", "f32") == "f32"
    with pytest.raises(UserError, match="--quantize q4: expected float16, .*int8.* for --format ctranslate2"):
        choose_type("ctranslate2", "q4")
    shutil.copy(base / "tokenizer.json", tmp_path)
    with pytest.raises(UserError, match="has no preprocessor_config.json, which faster-whisper reads"):
        make_conversion("ctranslate2", tmp_path)
