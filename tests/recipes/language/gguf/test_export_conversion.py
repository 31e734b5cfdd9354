"""Tests of `overtone.recipes.language.gguf.export_conversion`: exports of a tiny run, with a stand-in for llama.cpp's converter.

tests/real/test_gguf.py has those with the real converter and llama.cpp.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from overtone.finetune.cli import export as verb
from overtone.finetune.errors import UserError
from overtone.finetune.exporting.export import export
from overtone.finetune.storage import files
from overtone.finetune.storage.gguf_files import read_header
from overtone.recipes.language.gguf import converter_process, export_conversion
from tests.recipes.language.gguf.tokenizers_of_llama_cpp import KEY, byte_level
from tests.recipes.llm_sft import tiny_runs

STAND_IN = Path(__file__).parent / "stand_in"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of all weights, one of adapters with rsLoRA, and one with DoRA."""
    found = {}
    lora, dora = (("model.lora", f"{{rank: 4, alpha: 8, {kind}: true}}") for kind in ("rslora", "dora"))
    for name, change in (("full", tiny_runs.FULL), ("lora", lora), ("dora", dora)):
        folder = tmp_path_factory.mktemp(name)
        tiny_runs.write_base(folder / "base", byte_level())
        found[name] = tiny_runs.trained(folder, change, ("train.steps", "2"))
    return found


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converter_process, "find_converter", lambda: STAND_IN)


@pytest.mark.parametrize("run", ["full", "lora"])
def test_the_file_has_the_trained_weights_and_metadata(
    runs: dict[str, Path], run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "add_bos")
    out = export(runs[run], tmp_path / "out", "gguf")
    assert {path.name for path in out.iterdir()} == {"model-f16.gguf", "README.md", "overtone.json"}
    header = read_header(out / "model-f16.gguf")
    assert header.metadata[f"{KEY}add_bos_token"] is False and header.metadata["general.name"] == "out"
    merged = load_file(export(runs[run], tmp_path / "folder") / "model.safetensors")
    content = (out / "model-f16.gguf").read_bytes()
    for tensor in header.tensors:
        form = "<f4" if tensor.type == 0 else "<f2"
        found = np.frombuffer(content, form, tensor.elements, header.data_start + tensor.offset).reshape(tensor.shape)
        assert np.array_equal(found, merged[tensor.name].numpy().astype(form))
    card = json.loads((out / "overtone.json").read_text())
    assert card["format"] == "gguf" and card["weights"] == {"model-f16.gguf": files.digest(out / "model-f16.gguf")}
    assert "llama-server --jinja -m model-f16.gguf" in (out / "README.md").read_text()
    assert "library_name: gguf" in (out / "README.md").read_text()


def test_the_numbers_are_rounded_once(runs: dict[str, Path], tmp_path: Path) -> None:
    """A base in bf16 does not make the merged weights bf16 before they become f16."""
    folder = tmp_path / "trained"
    folder.mkdir()
    base = tiny_runs.write_base(folder / "base", byte_level())
    save_file({name: tensor.bfloat16() for name, tensor in load_file(base / "model.safetensors").items()}, base / "model.safetensors")
    run = tiny_runs.trained(folder, ("model.lora", "{rank: 4, alpha: 8}"), ("train.steps", "2"))
    out, merged = export(run, tmp_path / "out", "gguf"), load_file(export(run, tmp_path / "fp32", dtype="fp32") / "model.safetensors")
    header, content = read_header(out / "model-f16.gguf"), (out / "model-f16.gguf").read_bytes()
    finer = 0
    for tensor in (one for one in header.tensors if len(one.shape) == 2):
        found = np.frombuffer(content, "<f2", tensor.elements, header.data_start + tensor.offset).reshape(tensor.shape)
        assert np.array_equal(found, merged[tensor.name].numpy().astype("<f2"))
        finer += int((merged[tensor.name].bfloat16().float().numpy().astype("<f2") != found).sum())
    assert finer > 100


def test_the_modelfile_names_the_file(runs: dict[str, Path], tmp_path: Path) -> None:
    out = export(runs["full"], tmp_path / "out", "ollama", quantize="bf16")
    modelfile = (out / "Modelfile").read_text()
    assert modelfile.startswith('FROM ./model-bf16.gguf\nTEMPLATE """{{- $last := "" }}') and (out / "model-bf16.gguf").is_file()
    assert 'PARAMETER stop "<|im_end|>"' in modelfile and "ollama create" in (out / "README.md").read_text()


def test_an_adapter_has_the_scale_of_the_training(runs: dict[str, Path], tmp_path: Path) -> None:
    """llama.cpp scales by alpha / r, and rsLoRA by alpha / √r."""
    out = export(runs["lora"], tmp_path / "out", "gguf-adapter", strength=0.5)
    assert {path.name for path in out.iterdir()} == {"adapter-f32.gguf", "README.md", "overtone.json"}
    header = read_header(out / "adapter-f32.gguf")
    assert header.metadata["adapter.lora.alpha"] == 0.5 * 8 * math.sqrt(4) and len(header.tensors) == 2 * 2 * 7
    assert "--lora adapter-f32.gguf" in (out / "README.md").read_text()


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("lost", "numbers, where the exported weights have"),
        ("infinite", "model.embed_tokens.weight has values beyond the range of F16"),
        ("architecture", "its architecture is 'llama', expected 'qwen3'"),
        ("vocabulary", "the vocabulary is of the kind 'llama', where the trained one is 'gpt2'"),
        ("template", "its chat template differs from the trained one"),
    ],
)
def test_a_file_that_is_not_the_trained_model_is_refused(
    runs: dict[str, Path], tmp_path: Path, fault: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", fault)
    with pytest.raises(UserError, match=f"model-f16.gguf: what llama.cpp's converter wrote is not the trained model: .*{complaint}"):
        export(runs["full"], tmp_path / "out", "gguf")
    assert [*tmp_path.iterdir()] == []


def test_an_adapter_with_another_scale_is_refused(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "alpha")
    with pytest.raises(UserError, match=r"adapter.lora.alpha is 17.0, expected 16.0"):
        export(runs["lora"], tmp_path / "out", "gguf-adapter")
    assert [*tmp_path.iterdir()] == []


def test_the_export_appears_by_one_rename(runs: dict[str, Path], tmp_path: Path) -> None:
    """Until then there is one hidden folder, which the next export removes if this one is killed."""
    seen = []

    def look(operation: str, path: Path) -> None:
        if (operation, path) == ("rename", tmp_path / "out"):
            seen.append(sorted(one.name for one in tmp_path.iterdir()))
        assert not (tmp_path / "out").exists() or seen

    with files.watch(look):
        export(runs["full"], tmp_path / "out", "gguf")
    [[hidden]] = seen
    assert hidden.startswith(".out") and [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / f".two{files.TEMPORARY}0123abcd").mkdir()
    export(runs["full"], tmp_path / "two", "gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "two"]


@pytest.mark.parametrize(
    ("run", "options", "complaint"),
    [
        (
            "full",
            {"form": "gguf-adapter"},
            "--format gguf-adapter: this run trained all weights and has no adapter",
        ),
        ("lora", {"form": "gguf", "adapter_only": True}, "--adapter-only --format gguf: this format itself says"),
        (
            "full",
            {"form": "ollama", "dtype": "bf16"},
            "--dtype bf16: the numbers .* ollama are converted from fp32; .* --quantize",
        ),
        ("full", {"quantize": "f16"}, "--quantize f16: the format transformers has the weights as they were trained"),
        (
            "full",
            {"form": "gguf", "quantize": "q4_K_M"},
            "--quantize q4_K_M: expected f16, bf16, q8_0; .*llama-quantize model-f16.gguf model-q4_k_m.gguf Q4_K_M",
        ),
        ("lora", {"form": "gguf-adapter", "quantize": "q4_0"}, "--quantize q4_0: expected f32, f16, bf16, q8_0"),
        ("full", {"form": "onnx"}, "--format onnx: the recipe offers transformers, gguf, ollama, gguf-adapter"),
    ],
)
def test_what_contradicts_is_refused_before_any_work(
    runs: dict[str, Path], tmp_path: Path, run: str, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        export(runs[run], tmp_path / "out", **options)
    assert [*tmp_path.iterdir()] == []


def test_dora_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--format gguf-adapter: llama.cpp has no DoRA; export the whole model, with --format gguf"):
        export(runs["dora"], tmp_path / "out", "gguf-adapter")
    assert [*tmp_path.iterdir()] == []


def test_the_command_says_what_to_do_with_the_files(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.main([str(runs["full"]), "--to", str(tmp_path / "out"), "--format", "gguf", "--quantize", "bf16"]) == 0
    said = capsys.readouterr()
    assert "start it in the exported folder: llama-server -m model-bf16.gguf --jinja" in said.err
    assert "llama-quantize model-bf16.gguf model-q4_k_m.gguf Q4_K_M" in said.err
    assert said.out == f"{tmp_path / 'out'} is ready\n"


def test_the_types_of_numbers_are_those_of_the_flag() -> None:
    assert {form: export_conversion.choose_type(form, None) for form in export_conversion.FORMATS} == {
        "gguf": "f16",
        "ollama": "f16",
        "gguf-adapter": "f32",
    }
    assert "llama-quantize" not in " ".join(export_conversion.describe_use("gguf", "q8_0"))
