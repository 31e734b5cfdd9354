"""`overtone schema` prints a schema that accepts the recipes' configs and marks mistakes; the schema beside each recipe is up to date."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.__main__ import main
from overtone.finetune.config import Config
from overtone.finetune.config_key_descriptions import fields
from overtone.finetune.config_sources import load_yaml
from overtone.finetune.recipe import built_in_recipes, find_recipe

RECIPES = built_in_recipes()
HEADER = "# yaml-language-server: $schema=config.schema.json\n"


def print_schema(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main(["schema", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def resolve(schema: Any, node: Any) -> Any:
    """The schema of a section, behind its reference."""
    choices = [node, *node.get("anyOf", ())]
    return next((schema["$defs"][each["$ref"].rpartition("/")[2]] for each in choices if "$ref" in each), node)


def find_unknown_keys(schema: Any, node: Any, values: Any, prefix: str = "") -> list[str]:
    found = []
    for name, value in values.items():
        known = resolve(schema, node)
        if name not in known.get("properties", {}):
            found += [] if known.get("additionalProperties", True) else [prefix + name]
        elif isinstance(value, dict):
            found += find_unknown_keys(schema, known["properties"][name], value, f"{prefix}{name}.")
    return found


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_schema_beside_each_recipe_is_current_and_its_configs_name_it(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(RECIPES) >= 2
    folder = find_recipe(recipe)
    printed = print_schema(capsys, "--recipe", recipe)
    kept = json.loads((folder / "config.schema.json").read_text(encoding="utf-8"))
    assert kept == printed, f"make it again: overtone schema --recipe {recipe} > recipes/{recipe}/config.schema.json"
    names = sorted(path.name for path in folder.glob("*.yaml"))
    assert "config.yaml" in names
    for name in names:
        text = (folder / name).read_text(encoding="utf-8")
        assert text.startswith(HEADER)
        assert find_unknown_keys(printed, printed, load_yaml(text, name)) == []
    assert find_unknown_keys(printed, printed, {"train": {"lrr": 1}, "options": {"x": 1}}) == ["train.lrr", "options.x"]


def test_every_key_is_in_the_schema_with_its_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    schema = print_schema(capsys)
    keys = [key for key, *_ in fields(Config) if key not in ("options", "recipe")]
    assert len(keys) >= 40
    for key in keys:
        node = schema
        for part in key.split("."):
            node = resolve(schema, node)["properties"][part]
        assert node["description"], key


def test_the_schema_accepts_what_the_config_accepts(capsys: pytest.CaptureFixture[str]) -> None:
    schema = print_schema(capsys)
    trackers = schema["$defs"]["Log"]["properties"]["trackers"]["anyOf"]
    assert {each["type"] for each in trackers} == {"string", "array"}
    assert "required" not in schema, "a file sets some of the keys"


def test_an_unknown_recipe_or_flag_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["schema", "--recipe", "voice_clon"]) == 2
    assert "--recipe voice_clon" in capsys.readouterr().err
    assert main(["schema", "--recipe=x", "--resipe", "x"]) == 2
    assert "unknown flag --resipe; did you mean --recipe?" in capsys.readouterr().err
