"""python -m finetune eval-voice --model RUN|FOLDER --data ROWS.jsonl …

Says how good a voice is: whether it is understood, whether it sounds like the speaker, how it keeps the pace, and whether training helped.
Takes a run, one of its checkpoints, or an exported folder. The recipe knows the rest: give --model, and --help for its options.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a file: the first entry of the path is finetune/, where `import finetune` finds nothing
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import argparse

from finetune.errors import UserError, exit_code
from finetune.export import CARD
from finetune.generate import recipe_of
from finetune.recipe import find_recipe, load_recipe


def main(argv: list[str]) -> int:
    return exit_code(run, argv)


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "finetune eval-voice",
        description=__doc__,
        add_help=False,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a run, a checkpoint of one, or what `finetune export` made")
    parser.add_argument("--recipe", help="for a folder that another tool made")
    asked, rest = parser.parse_known_args(argv)
    if asked.model is None:
        if {"-h", "--help"} & set(rest):
            parser.print_help()
            return 0
        raise UserError("which model? give --model with a run folder, or with what `python -m finetune export RUN --to FOLDER` made")
    name = asked.recipe or made_by(asked.model)
    evaluate = load_recipe(find_recipe(name)).evaluate
    if evaluate is None:
        raise UserError(f"--model {asked.model}: the recipe {name} makes no voice, so there is nothing to evaluate here")
    return evaluate(asked.model, rest)


def made_by(model: Path) -> str:
    """The recipe of a run, a checkpoint or an exported folder. Raises `UserError` for anything else."""
    if not model.is_dir():
        raise UserError(f"--model {model}: no such folder; give a run, one of its checkpoints, or an exported folder")
    if (model / CARD).is_file():
        return recipe_of(model)
    from finetune import checkpoint

    return str(checkpoint.read_state(checkpoint.find(model))["recipe"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
