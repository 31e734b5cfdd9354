"""python -m finetune serve --model FOLDER [--model FOLDER …] …

Serves exported models to browsers and other programs, by default on this machine only. The folders name their recipe; add --help for the
options of that recipe.
"""

from __future__ import annotations

from pathlib import Path

from finetune.cli.generate import ensure_exported, find_recipe_name, locate_model, parse_model_arguments
from finetune.errors import UserError, exit_code
from finetune.recipe import find_recipe, load_recipe


def main(argv: list[str]) -> int:
    return exit_code(run, argv)


def run(argv: list[str]) -> int:
    """Serve the models on the command line; returns the exit code."""
    given = parse_model_arguments("serve", __doc__, argv)
    if given is None:
        return 0
    models = locate_models(given.models)
    name = find_shared_recipe(models, given.recipe)
    serve = load_recipe(find_recipe(name)).inference.serve
    if serve is None:
        raise UserError(f"the recipe {name} has no server; use `python -m finetune generate --model {given.models[0]}`")
    return serve([ensure_exported(model, name) for model in models], given.rest)


def locate_models(folders: list[Path]) -> list[Path]:
    """The model that `ensure_exported` takes, for each --model. Raises `UserError` for a folder that does not exist."""
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"--model {folder}: no such folder")
    return [locate_model(folder) for folder in folders]


def find_shared_recipe(models: list[Path], given: str | None) -> str:
    """The recipe that all models share, or the `given` one. Raises `UserError` if they have different recipes."""
    names = {folder: find_recipe_name(folder, given) for folder in models}
    if len(set(names.values())) > 1:
        listed = ", ".join(f"{folder} of {name}" for folder, name in names.items())
        raise UserError(f"models of different recipes ({listed}) cannot be served together; start one server for each recipe")
    return next(iter(names.values()))
