"""python -m finetune serve --model FOLDER [--model FOLDER …] …

Serves exported models to browsers and other programs, on this machine unless told otherwise. The folders know their recipe, and the recipe
knows the rest: add --help for its options.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a file: the first entry of the path is finetune/, where `import finetune` finds nothing
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from finetune.errors import UserError, exit_code
from finetune.generate import ask, exported, located, recipe_of
from finetune.recipe import find_recipe, load_recipe


def main(argv: list[str]) -> int:
    return exit_code(run, argv)


def run(argv: list[str]) -> int:
    asked = ask("serve", __doc__, argv)
    if asked is None:
        return 0
    models = found(asked.models)
    name = recipe_of_all(models, asked.recipe)
    serve = load_recipe(find_recipe(name)).inference.serve
    if serve is None:
        raise UserError(f"the recipe {name} serves nothing; use `python -m finetune generate --model {asked.models[0]}`")
    return serve([exported(model, name) for model in models], asked.rest)


def found(given: list[Path]) -> list[Path]:
    """What `exported` takes, for each --model."""
    for folder in given:
        if not folder.is_dir():
            raise UserError(f"--model {folder}: no such folder")
    return [located(folder) for folder in given]


def recipe_of_all(models: list[Path], given: str | None) -> str:
    """The recipe of the exported folders and checkpoints, or the `given` one. Raises `UserError` if it is not one and the same."""
    names = {folder: recipe_of(folder, given) for folder in models}
    if len(set(names.values())) > 1:
        told = ", ".join(f"{folder} of {name}" for folder, name in names.items())
        raise UserError(f"models of different recipes ({told}) are not served together; start one server for each recipe")
    return next(iter(names.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
