"""overtone schema [--recipe NAME] > FILE

Prints the JSON schema of a run's config, with which editors complete keys, show their documentation and mark mistakes. With --recipe it
includes the options of that recipe. In an editor with a YAML language server, this first line of a config selects it:

    # yaml-language-server: $schema=FILE
"""

from __future__ import annotations

import argparse
import json

from pydantic import JsonValue

from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.config import Config, make_config_class
from overtone.finetune.errors import catch_user_errors
from overtone.finetune.recipe import find_recipe, load_options
from overtone.finetune.terminal import print_content

DIALECT = "https://json-schema.org/draft/2020-12/schema"

OVERLAY = {"type": "object", "description": "Keys of this config that apply if model.lora is set, as in `lora: {train: {lr: 1.0e-4}}`."}
"""Schema of the section `lora`, which is merged into the config before it is validated."""


@catch_user_errors
def main(argv: list[str]) -> int:
    """Print the schema; returns the exit code."""
    parser = argparse.ArgumentParser(
        "overtone schema", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--recipe", metavar="NAME", help="include the options of this recipe (default: options may have any key)")
    print_content(json.dumps(make_schema(parse_arguments(parser, argv).recipe), indent=1, ensure_ascii=False))
    return 0


def make_schema(recipe: str | None) -> dict[str, JsonValue]:
    """Return the JSON schema of a config file. A file may set any subset of the keys, `recipe` included. Raises `UserError` for an unknown
    recipe."""
    model = Config if recipe is None else make_config_class(load_options(find_recipe(recipe)))
    schema = model.model_json_schema()
    schema["properties"].setdefault("lora", OVERLAY)
    schema["$defs"]["Model"]["properties"]["lora"]["anyOf"].insert(0, {"type": "boolean"})  # `lora: true` stands for the defaults
    schema.pop("required", None)  # a file overrides defaults, and --recipe names the recipe
    if recipe is None:
        schema["properties"]["options"] = {"type": "object", "description": "Options of the recipe."}
    return {"$schema": DIALECT, "title": "Config of an Overtone run", **{key: value for key, value in schema.items() if key != "title"}}
