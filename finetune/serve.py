"""python -m finetune serve --model FOLDER [--model FOLDER …] …

Serves exported models to browsers and other programs, on this machine unless told otherwise. The folders know their recipe, and the recipe
knows the rest: add --help for its options.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a file: the first entry of the path is finetune/, where `import finetune` finds nothing
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import argparse

from finetune.errors import UserError, exit_code
from finetune.generate import exported, recipe_of
from finetune.recipe import find_recipe, load_recipe


def main(argv: list[str]) -> int:
    return exit_code(run, argv)


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "finetune serve",
        description=__doc__,
        add_help=False,
        allow_abbrev=False,  # --mode of a recipe is not short for --model
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="what `finetune export` made; or a run or checkpoint, which is exported into the run's cache; repeatable",
    )
    parser.add_argument("--recipe", help="for folders that another tool made")
    arguments, rest = parser.parse_known_args(argv)
    if not arguments.model and {"-h", "--help"} & set(rest):
        parser.print_help()
        return 0
    folders = found(arguments.model)
    name = arguments.recipe or recipe_of_all(folders)
    recipe = load_recipe(find_recipe(name))
    if recipe.serve is None:
        raise UserError(f"the recipe {name} serves nothing; use `python -m finetune generate --model {folders[0]}`")
    return recipe.serve(folders, rest)


def found(given: list[Path]) -> list[Path]:
    """The exported folders; runs and checkpoints among the given are exported."""
    if not given:
        raise UserError("which model? give --model FOLDER, as `python -m finetune export RUN --to FOLDER` makes it")
    for folder in given:
        if not folder.is_dir():
            raise UserError(f"--model {folder}: no such folder")
    return [exported(folder) for folder in given]


def recipe_of_all(folders: list[Path]) -> str:
    """The recipe that made the exported folders. Raises `UserError` if it is not one and the same."""
    names = {folder: recipe_of(folder) for folder in folders}
    if len(set(names.values())) > 1:
        told = ", ".join(f"{folder} of {name}" for folder, name in names.items())
        raise UserError(f"models of different recipes ({told}) are not served together; start one server for each recipe")
    return next(iter(names.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
