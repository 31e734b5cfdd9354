"""Tests of `overtone.finetune.recipe.contract`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import load_recipe
from tests.finetune import tiny


def test_a_recipe_without_inference_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny.FOLDER, tmp_path / "mine")
    source = (folder / "recipe.py").read_text()
    line = "    inference=Inference(generate=generate),\n"
    assert line in source
    (folder / "recipe.py").write_text(source.replace(line, ""))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'inference'"):
        load_recipe(folder)


def test_the_byte_model_keeps_the_contract() -> None:
    assert load_recipe(tiny.FOLDER) is tiny.RECIPE
    sample = tiny.RECIPE.read({"text": "abcd"}, None, Path())
    batch = tiny.RECIPE.collate([sample, tiny.RECIPE.read({"text": "ab!"}, None, Path())])
    assert tiny.RECIPE.length(sample) == 4 and batch.targets == {"next": 5, "after_next": 3}
    with pytest.raises(UserError, match="at least three bytes"):
        tiny.RECIPE.read({"text": ""}, None, Path())
