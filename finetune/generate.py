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
    chosen = choose("generate", __doc__, argv)
    if chosen is None:
        return 0
    model, name, rest = chosen
    return load_recipe(find_recipe(name)).generate(model, rest)


def choose(verb: str, about: str | None, argv: list[str]) -> tuple[Path, str, list[str]] | None:
    """The exported folder, the name of its recipe, and the arguments that are the recipe's. None if help was asked for and given."""
    parser = argparse.ArgumentParser(
        f"finetune {verb}",
        description=about,
        add_help=False,
        allow_abbrev=False,  # --mode of a recipe is not short for --model
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="FOLDER",
        help="what `finetune export` made; or a run or checkpoint, which is exported into the run's cache",
    )
    parser.add_argument("--recipe", help="for a folder that another tool made")
    arguments, rest = parser.parse_known_args(argv)
    if arguments.model is None:
        if {"-h", "--help"} & set(rest):
            parser.print_help()
            return None
        raise UserError("which model? give --model FOLDER, as `python -m finetune export RUN --to FOLDER` makes it")
    folder = exported(arguments.model)
    return folder, arguments.recipe or recipe_of(folder), rest


def exported(given: Path) -> Path:
    """The folder itself, or, of a run or one of its checkpoints, its export: made once, and kept in the cache of the run."""
    is_run, is_checkpoint = (given / "checkpoints").is_dir(), (given / "state.json").is_file()
    if (given / CARD).is_file() or not (is_run or is_checkpoint):
        return given
    from finetune import checkpoint, export, files

    chosen = checkpoint.find(given)
    # Another run in the same folder may reach the same step; what the checkpoint holds is in its manifest.
    target = chosen.parent.parent / "cache" / "exports" / f"{chosen.name}-{files.digest(chosen / 'manifest.json')[:8]}"
    if not target.exists():
        export.export(chosen, target)
    return target


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
