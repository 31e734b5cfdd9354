"""python -m finetune generate --model FOLDER …

Speaks, or writes, with an exported model. The folder knows its recipe, and the recipe knows the rest: add --help for its options.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a file: the first entry of the path is finetune/, where `import finetune` finds nothing
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import argparse
import json

from finetune.errors import UserError, exit_code
from finetune.export import CARD
from finetune.recipe import find_recipe, load_recipe


def main(argv: list[str]) -> int:
    return exit_code(run, argv)


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "finetune generate",
        description=__doc__,
        add_help=False,
        allow_abbrev=False,  # --mode of a recipe is not short for --model
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="what `finetune export` made")
    parser.add_argument("--recipe", help="for a folder that another tool made")
    arguments, rest = parser.parse_known_args(argv)
    if arguments.model is None:
        if {"-h", "--help"} & set(rest):
            parser.print_help()
            return 0
        raise UserError("which model? give --model FOLDER, as `python -m finetune export RUN --to FOLDER` makes it")
    recipe = load_recipe(find_recipe(arguments.recipe or recipe_of(arguments.model)))
    return recipe.generate(arguments.model, rest)


def recipe_of(folder: Path) -> str:
    """The recipe that an exported folder was made by."""
    try:
        return str(json.loads((folder / CARD).read_text())["recipe"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"--model {folder} is no exported model ({CARD} is missing or unreadable); export one, or name its recipe with --recipe"
        ) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
