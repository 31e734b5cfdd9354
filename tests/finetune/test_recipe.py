"""A recipe is found by its name or its path, imports only what is its own, and needs no edit elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from finetune.errors import UserError
from finetune.recipe import Recipe, built_in_recipes, find_recipe, load_recipe, recipe_named_in
from tests.finetune import tiny

ROOT = Path(__file__).parents[2]


def test_a_name_is_a_folder_under_recipes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe("voice_clone") == ROOT / "recipes" / "voice_clone"


def test_a_path_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_recipe(str(tiny.FOLDER)) == tiny.FOLDER
    monkeypatch.chdir(ROOT)
    assert find_recipe("tests/byte_model") == find_recipe("./tests/byte_model") == tiny.FOLDER


@pytest.mark.parametrize("name", ["voice_clon", "./voice_clone", "nowhere/voice_clone", ".."])
def test_an_unknown_one_lists_those_that_are_there(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"--recipe .*: no recipe\.py in .*; known recipes: .*voice_clone.*, or give the path"):
        find_recipe(name)


def test_a_file_may_name_a_built_in_recipe_and_no_other(tmp_path: Path) -> None:
    shutil.copytree(tiny.FOLDER, tmp_path / "mine")
    place = tmp_path / "state.json"
    assert {"voice_clone", "llm_sft"} <= set(built_in_recipes())
    assert recipe_named_in(place, "voice_clone", None) == "voice_clone"
    for name in (str(tmp_path / "mine"), "./mine", "voice_clone/", "../recipes/voice_clone", "Voice_Clone", "", None, 3, ["voice_clone"]):
        with pytest.raises(UserError, match=r"state\.json names the recipe .*give its folder yourself with --recipe PATH"):
            recipe_named_in(place, name, None)
        assert recipe_named_in(place, name, str(tmp_path / "mine")) == str(tmp_path / "mine"), "what a person gives counts"


def test_a_file_without_a_recipe_says_what_it_must_define(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text("RECIPE = 'mine'\n")
    with pytest.raises(UserError, match=r"recipe\.py must define RECIPE = Recipe\(\.\.\.\)"):
        load_recipe(tmp_path)


@pytest.mark.parametrize("name", ["my_recipe", "my.recipe-2", "json"])
def test_an_outside_folder_is_a_package_of_its_own(tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(tiny.FOLDER, tmp_path / name)
    (folder / "neighbour.py").write_text("FORMATS = ('mine', 'yours')\n")
    source = (folder / "recipe.py").read_text()
    changed = source.replace("import json\n", "import json\nfrom .neighbour import FORMATS\n", 1).replace('("plain",)', "FORMATS")
    (folder / "recipe.py").write_text(changed)
    recipe = load_recipe(find_recipe(str(folder)))
    assert isinstance(recipe, Recipe) and recipe.formats == ("mine", "yours")


def test_two_outside_folders_of_one_name_are_two_recipes(tmp_path: Path) -> None:
    for place, form in (("a", "first"), ("b", "second")):
        folder = shutil.copytree(tiny.FOLDER, tmp_path / place / "same")
        source = (folder / "recipe.py").read_text()
        assert '"plain"' in source
        (folder / "recipe.py").write_text(source.replace('"plain"', f'"{form}"'))
    assert load_recipe(tmp_path / "a" / "same").formats == ("first",)
    assert load_recipe(tmp_path / "b" / "same").formats == ("second",)
    assert load_recipe(tmp_path / "a" / "same") is load_recipe(tmp_path / "a" / "same")


def test_a_recipe_that_breaks_while_it_is_imported_breaks_again(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text("RECIPE = None\nraise ValueError('half way')\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="half way"):
            load_recipe(tmp_path)


def test_a_folder_called_recipes_elsewhere_is_outside(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny.FOLDER, tmp_path / "recipes" / "voice_clone")
    assert load_recipe(folder).formats == ("plain",)


def test_the_byte_model_keeps_the_contract() -> None:
    assert load_recipe(tiny.FOLDER) is tiny.RECIPE
    sample = tiny.RECIPE.read({"text": "abcd"}, None)
    batch = tiny.RECIPE.collate([sample, tiny.RECIPE.read({"text": "ab!"}, None)])
    assert tiny.RECIPE.length(sample) == 4 and batch.targets == {"next": 5, "after_next": 3}
    with pytest.raises(UserError, match="at least three bytes"):
        tiny.RECIPE.read({"text": ""}, None)
