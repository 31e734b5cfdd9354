"""Tests of `overtone.finetune.storage.foreign_model_formats`: a GGUF or an adapter is refused as a model, with what to give instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loading import resolve_source
from overtone.finetune.storage.foreign_model_formats import explain_foreign_model
from overtone.recipes.language.model_loading import load_for_generation
from tests.finetune.storage.gguf_samples import write_gguf

WEIGHTS = {"a": ("F32", np.zeros(4))}


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"general.name": "SmolLM2"}, ", which it calls SmolLM2"),
        ({"general.name": "SmolLM2", "general.base_model.0.repo_url": "https://hub/a/b"}, ", which it calls https://hub/a/b"),
        ({"general.name": "evil\x1b[2J"}, r", which it calls evil\\x1b[2J"),
        ({}, ""),
    ],
)
def test_a_gguf_is_no_base(tmp_path: Path, metadata: dict[str, Any], named: str, inside: bool) -> None:
    path = write_gguf(tmp_path / "model-q8_0.gguf", metadata, WEIGHTS)
    with pytest.raises(UserError) as refused:
        resolve_source(str(path.parent if inside else path), None)
    said = str(refused.value)
    assert said.startswith(f"model.source {path.parent if inside else path}: model-q8_0.gguf is a GGUF file, for llama.cpp and Ollama")
    assert said.endswith("the hub name of the model that it was made from" + named.replace(r"\\", "\\"))


def test_a_damaged_gguf_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF\3")
    with pytest.raises(UserError, match="model.gguf is a GGUF file.*that it was made from$"):
        resolve_source(str(tmp_path / "model.gguf"), None)


@pytest.mark.parametrize(("content", "named"), [({"base_model_name_or_path": "Qwen/Qwen3-8B"}, " of Qwen/Qwen3-8B"), ({}, ""), (None, "")])
def test_an_adapter_is_no_base(tmp_path: Path, content: dict[str, str] | None, named: str) -> None:
    (tmp_path / "adapter_config.json").write_text("{" if content is None else json.dumps(content))
    with pytest.raises(UserError, match=f"it has a LoRA adapter{named}, not a model. Merge it .* without --adapter-only"):
        resolve_source(str(tmp_path), None)


def test_generation_names_them_too(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model-f16.gguf", {}, WEIGHTS)
    with pytest.raises(UserError, match="--model .*: model-f16.gguf is a GGUF file"):
        load_for_generation(tmp_path)


def test_a_model_beside_a_gguf_and_other_files_are_not_explained(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("GGU")
    assert explain_foreign_model(tmp_path / "notes.txt") is None and explain_foreign_model(tmp_path) is None
    assert explain_foreign_model(tmp_path / "none") is None
    write_gguf(tmp_path / "model.gguf", {}, WEIGHTS)
    (tmp_path / "config.json").write_text("{}")
    assert resolve_source(str(tmp_path), None) == tmp_path
