"""The pages of the reference, from the code: commands, config keys, the HTTP APIs, the Python API, the contract of recipes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI

import overtone
from overtone.__main__ import GROUPS
from overtone.finetune import recipe
from overtone.finetune.config import Config
from overtone.finetune.config_key_descriptions import fields
from overtone.finetune.recipe import built_in_recipes, find_recipe, load_recipe
from overtone.recipes.language.serving import chat_api
from overtone.recipes.speech.serving import openai_api
from overtone.recipes.whisper.serving import transcription_api


def list_pages() -> Iterator[tuple[str, str]]:
    """Yield the file name and the Markdown of each page."""
    yield "commands.md", describe_commands()
    yield "config.md", describe_config()
    yield "http.md", describe_apis()
    yield "python.md", describe_package()
    yield "recipe.md", describe_contract()


def describe_commands() -> str:
    """Every verb with its own help, in the order of the work."""
    parts = ["# Commands\n\nWhat `overtone VERB --help` prints, for each verb. `overtone` alone lists them.\n"]
    for heading, verbs in GROUPS.items():
        parts.append(f"## {heading}\n")
        for verb, text in verbs.items():
            command = [sys.executable, "-m", "overtone", verb, "--help"]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env={"COLUMNS": "100", "PATH": ""})
            parts.append(f"### overtone {verb}\n\n{text[:1].upper()}{text[1:]}.\n\n```text\n{done.stdout.rstrip()}\n```\n")
    return "\n".join(parts)


def describe_config() -> str:
    """Every key of the config with its type, default and documentation, then the options of each recipe."""
    common = [found for found in fields(Config) if found[0] != "options"]
    parts = [
        "# Config keys\n\nEach key can stand in a YAML file (`--config FILE`) or on the command line (`--train.lr 1e-5`). The recipe's\n"
        "own `config.yaml` has other defaults for some; `overtone plan --recipe NAME --settings` prints each value with its origin.\n",
    ]
    sections = dict.fromkeys(key.partition(".")[0] for key, _, _ in common)
    for section in sections:
        parts.append(f"## {section}\n\n{make_table([found for found in common if found[0].partition('.')[0] == section])}")
    for name in built_in_recipes():
        options = [(f"options.{key}", kind, text) for key, kind, text in fields(load_recipe(find_recipe(name)).Options)]
        parts.append(f"## options of {name}\n\n{make_table(options)}")
    return "\n".join(parts)


def make_table(rows: list[tuple[str, str, str]]) -> str:
    cells = [[f"`{key}`", kind, text] for key, kind, text in rows]
    lines = [" | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) for row in cells]
    return "\n".join(["| key | type and default | |", "| --- | --- | --- |", *(f"| {line} |" for line in lines), ""])


def describe_apis() -> str:
    """The requests of each server, from the OpenAPI document of its app."""
    parts = ["# HTTP APIs\n\nThe requests that [`overtone serve`](../docs/serving.md) answers. The fields are those of OpenAI's APIs.\n"]
    unused: Any = None
    for title, routes in (
        ("Chats", chat_api.routes(unused)),
        ("Speech", openai_api.routes(unused, unused, unused)),
        ("Transcription", transcription_api.routes(unused, unused)),
    ):
        app = FastAPI()
        routes.routes = [route for route in routes.routes if getattr(route, "path", "") != "/v1/{path:path}"]  # answers what is not there
        app.include_router(routes)
        document = app.openapi()
        parts.append(f"## {title}\n")
        for path, methods in document["paths"].items():
            parts += [describe_request(method, path, call, document) for method, call in methods.items()]
    return "\n".join(parts)


def describe_request(method: str, path: str, call: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """A request with the fields of its body."""
    text = f"### {method.upper()} {path}\n\n{call.get('description', '')}\n"
    for kind, content in call.get("requestBody", {}).get("content", {}).items():
        schema = content["schema"]
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        needed = schema.get("required", [])
        rows = [
            (name, f"{name_type(each)}{', required' if name in needed else ''}", each.get("description", ""))
            for name, each in schema.get("properties", {}).items()
        ]
        text += f"\nBody ({kind}):\n\n{make_table(rows)}" if rows else f"\nBody: {kind}\n"
    return text


def name_type(schema: Mapping[str, Any]) -> str:
    """The type of a field of a body."""
    if choices := schema.get("anyOf"):
        return " | ".join(name_type(each) for each in choices)
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if values := schema.get("enum") or ([schema["const"]] if "const" in schema else None):
        return " | ".join(map(str, values))
    if schema.get("type") == "array":
        return f"list of {name_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def describe_package() -> str:
    """What the package `overtone` offers, for mkdocstrings."""
    names = "\n".join(f"::: overtone.{name}\n" for name in overtone.__all__)
    return f"# Python API\n\nThe functions do what the commands do. [How to use them in a notebook](../docs/api.md).\n\n{names}"


def describe_contract() -> str:
    """What a recipe gives and gets, for mkdocstrings: the classes of `finetune/recipe/`, each with its fields."""
    classes = [name for name in recipe.__all__ if isinstance(getattr(recipe, name), type)]
    names = "\n".join(f"::: overtone.finetune.recipe.{name}\n" for name in sorted(classes, key=lambda name: name != "Recipe"))
    return f"# The contract of recipes\n\n[How to add a recipe](../docs/add_a_recipe.md). What has a default is optional.\n\n{names}"
