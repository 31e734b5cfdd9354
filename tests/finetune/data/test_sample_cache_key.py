"""Cached samples are invalidated by another tokenizer, other code or another version of a library, and not by other weights."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from overtone.finetune.data import sample_cache_key
from overtone.finetune.distributed.process_group import World
from overtone.finetune.recipe import RecipeState
from tests.finetune import tiny


def test_lengths_depend_on_the_tokenizer_and_not_on_the_weights(tmp_path: Path) -> None:
    config = tiny.config_in(tmp_path)
    keys = [sample_cache_key.data_key(config.recipe, config.options, tiny.RECIPE.load(config))]
    (tmp_path / "base" / "model.safetensors").write_bytes(b"other weights")
    assert [sample_cache_key.data_key(config.recipe, config.options, tiny.RECIPE.load(config))] == keys
    for name in ("tokenizer.json", "chat_template.jinja", "config.json"):
        (tmp_path / "base" / name).write_text('{"edited": true}')
        keys.append(sample_cache_key.data_key(config.recipe, config.options, tiny.RECIPE.load(config)))
    keys.append(
        sample_cache_key.data_key(
            config.recipe, config.options, replace(tiny.RECIPE.load(config), state=RecipeState(chat_template="{{ messages }}"))
        )
    )
    assert len(set(keys)) == 5


def test_samples_depend_on_the_code_that_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, outside = tiny.config_in(tmp_path), shutil.copytree(tiny.FOLDER, tmp_path / "my_recipe")
    loaded, found = tiny.RECIPE.load(config), [sample_cache_key.code_version(outside)]
    assert sample_cache_key.code_version(outside) == found[0]
    (outside / "reading.py").write_text("SEPARATOR = 0\n")
    found.append(sample_cache_key.code_version(outside))
    keys = [sample_cache_key.data_key(config.recipe, config.options, loaded)]
    monkeypatch.setattr(sample_cache_key, "version", lambda name: "of another time")
    found.append(sample_cache_key.code_version(outside))
    keys.append(sample_cache_key.data_key(config.recipe, config.options, loaded))
    assert len(set(found)) == 3 and len(set(keys)) == 2


def test_another_version_of_a_library_of_the_recipe_invalidates_cached_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny.config_in(tmp_path)
    loaded = tiny.RECIPE.load(config)
    keys = [
        sample_cache_key.data_key(config.recipe, config.options, replace(loaded, libraries=names))
        for names in ((), ("pillow",), ("no-such-library",))
    ]
    own = sample_cache_key.version
    monkeypatch.setattr(sample_cache_key, "version", lambda name: "1.2.3" if name == "pillow" else own(name))
    assert sample_cache_key.data_key(config.recipe, config.options, loaded) == keys[0]
    keys.append(sample_cache_key.data_key(config.recipe, config.options, replace(loaded, libraries=("pillow",))))
    assert len(set(keys)) == 4


def test_another_tokenizer_invalidates_cached_samples(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny.config_in(tmp_path)
    loaded = tiny.RECIPE.load(config)
    read = list[str]()
    recipe = replace(tiny.RECIPE, read=lambda row, *others: read.append(row["text"]) or tiny.RECIPE.read(row, *others))  # type: ignore[func-returns-value]  # append, then read

    def opened_again() -> int:
        read.clear()
        rows = tiny.open_rows(
            tmp_path / "train.jsonl",
            tmp_path / "cache",
            sample_cache_key.data_key(config.recipe, config.options, loaded),
            recipe,
            loaded,
            config,
            world,
        )
        assert len(rows) == 20
        return len(read)

    assert [opened_again(), opened_again()] == [20, 0]
    (tmp_path / "base" / "tokenizer.json").write_text("{}")
    assert [opened_again(), opened_again()] == [20, 0]
    assert "indexing" in capsys.readouterr().err
