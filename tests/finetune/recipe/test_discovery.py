"""A recipe is found by its name or path, imports only its own modules, and needs no edits in other places."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import (
    Recipe,
    built_in_recipes,
    choose_recipe,
    find_recipe,
    load_data_preparation,
    load_inference,
    load_options,
    load_recipe,
    load_released_models,
)
from tests.finetune import tiny

ROOT = Path(__file__).parents[3]


def test_a_name_is_a_folder_under_recipes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe("voice_clone") == ROOT / "recipes" / "voice_clone"


def test_a_path_is_used_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_recipe(str(tiny.FOLDER)) == tiny.FOLDER
    monkeypatch.chdir(ROOT)
    assert find_recipe("tests/byte_model") == find_recipe("./tests/byte_model") == tiny.FOLDER


@pytest.mark.parametrize("name", ["voice_clon", "./voice_clone", "nowhere/voice_clone", ".."])
def test_an_unknown_recipe_lists_the_known_ones(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"--recipe .*: no recipe\.py in .*; known recipes: .*voice_clone.*, or give the path"):
        find_recipe(name)


def test_a_file_may_name_a_built_in_recipe_and_no_other(tmp_path: Path) -> None:
    shutil.copytree(tiny.FOLDER, tmp_path / "mine")
    place = tmp_path / "state.json"
    assert {"voice_clone", "llm_sft"} <= set(built_in_recipes())
    assert choose_recipe(place, "voice_clone", None) == "voice_clone"
    for name in (str(tmp_path / "mine"), "./mine", "voice_clone/", "../recipes/voice_clone", "Voice_Clone", "", None, 3, ["voice_clone"]):
        with pytest.raises(UserError, match=r"state\.json names the recipe .*give its folder yourself with --recipe PATH"):
            choose_recipe(place, name, None)
        assert choose_recipe(place, name, str(tmp_path / "mine")) == str(tmp_path / "mine"), "what a person gives counts"


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


@pytest.mark.parametrize("on_path", [True, False], ids=["clone", "installed"])
def test_a_recipe_that_imports_past_the_one_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: bool) -> None:
    module = "finetune.addresses"
    monkeypatch.setattr(sys, "path", [*([str(ROOT)] if on_path else []), *(each for each in sys.path if Path(each).resolve() != ROOT)])
    (tmp_path / "recipe.py").write_text(f"from {module} import hide_word\n")
    try:
        with pytest.raises(UserError, match=r"recipe\.py imports finetune.*; import overtone\.finetune"):
            load_recipe(tmp_path)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "finetune"]:
            del sys.modules[name]


def test_a_recipe_that_fails_to_import_fails_again(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text("RECIPE = None\nraise ValueError('half way')\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="half way"):
            load_recipe(tmp_path)


def test_a_folder_called_recipes_in_another_place_is_outside_the_package(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny.FOLDER, tmp_path / "recipes" / "voice_clone")
    assert load_recipe(folder).formats == ("plain",)


def with_options_file(folder: Path, options: str = "Options") -> Path:
    """The byte model with its options in a file of their own."""
    shutil.copytree(tiny.FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    source = (folder / "recipe.py").read_text()
    section = source[source.index("class Options") : source.index("class Block")]
    (folder / "recipe.py").write_text(source.replace(section, f"from .options import {options} as Options\n\n\n"))
    (folder / "options.py").write_text(f"from pydantic import Field\nfrom overtone.finetune.config import Section\n\n\n{section}")
    return folder


def test_options_in_a_separate_file_are_read_without_torch(tmp_path: Path) -> None:
    folder = with_options_file(tmp_path / "mine")
    script = (
        f"import sys; from overtone.finetune import train; train.main(['--recipe', {str(folder)!r}, '--help']); "
        f"print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "--options.dropout" in done.stdout and done.stdout.splitlines()[-1] == "False", done.stderr
    assert load_options(folder) is load_recipe(folder).Options


def test_options_may_be_in_the_recipe(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny.FOLDER, tmp_path / "mine")
    (folder / "options.py").write_text("LEVELS = (1, 2)\n")
    assert load_options(folder) is load_recipe(folder).Options, "an options.py without Options is a file like any other"


def test_two_classes_of_options_are_refused(tmp_path: Path) -> None:
    folder = with_options_file(tmp_path / "mine", "Others")
    with (folder / "options.py").open("a") as file:
        file.write("\n\nclass Others(Options):\n    pass\n")
    with pytest.raises(UserError, match=r"recipe\.py: Recipe\(Options=…\) must be given the Options of .*options\.py"):
        load_recipe(folder)


def test_released_models_are_read_from_their_own_file(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny.FOLDER, tmp_path / "mine")
    assert load_released_models(folder) == ()
    model = 'ReleasedModel("me/mine", "mit", "English", {"width": 15})'
    (folder / "released_models.py").write_text(f"from overtone.finetune.recipe import ReleasedModel\nRELEASED = ({model},)\n")
    assert [one.name for one in load_released_models(folder)] == ["me/mine"]
    other = shutil.copytree(folder, tmp_path / "other")
    (other / "released_models.py").write_text("RELEASED = ['me/mine']\n")
    with pytest.raises(UserError, match=r"released_models\.py must define RELEASED = \(ReleasedModel\(\.\.\.\), \.\.\.\)"):
        load_released_models(other)


def test_options_and_verbs_of_the_recipes_import_no_torch() -> None:
    """Otherwise `--help`, and every mistake in a command line, would wait for it."""
    names = built_in_recipes()
    program = f"""
import sys
from overtone.finetune.recipe import find_recipe, load_inference, load_options, load_data_preparation
for name in {names}:
    folder = find_recipe(name)
    load_options(folder), load_inference(folder), load_data_preparation(folder)
print([name for name in ("torch", "transformers", "numpy", "soundfile") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert len(names) >= 5 and done.stdout == "[]\n", done.stdout + done.stderr


VERBS = """
from overtone.finetune.recipe import Inference, DataPreparation
INFERENCE = Inference(generate=lambda folder, argv: 0, help={"generate": print})
DATA = DataPreparation(verb="text")
"""


def test_verbs_are_read_from_their_own_file(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny.FOLDER, tmp_path / "mine")
    assert load_inference(folder).help == {} and "one JSON object in each line" in load_data_preparation(folder).advice
    other = shutil.copytree(folder, tmp_path / "other")
    (other / "verbs.py").write_text(VERBS)
    assert load_inference(other).help == {"generate": print} and load_data_preparation(other).verb == "text"
    with pytest.raises(UserError, match=r"recipe\.py: Recipe\(inference=…\) must be given the INFERENCE of .*verbs\.py"):
        load_recipe(other)
    source = (other / "recipe.py").read_text()
    third = shutil.copytree(other, tmp_path / "third")
    line = "inference=Inference(generate=generate),"
    assert line in source
    (third / "recipe.py").write_text(
        source.replace(line, "inference=INFERENCE,").replace("import json\n", "import json\nfrom .verbs import INFERENCE\n", 1)
    )
    assert load_recipe(third).inference is load_inference(third)
