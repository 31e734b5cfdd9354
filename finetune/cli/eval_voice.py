"""python -m finetune eval-voice --model RUN|FOLDER --data ROWS.jsonl …

Measures how good a voice is: intelligibility, speaker similarity and pace, and whether training helped.
Takes a run, one of its checkpoints, or an exported folder. Give --model and --help for the options of its recipe.
"""

from __future__ import annotations

from pathlib import Path

from finetune.cli.generate import find_recipe_name, parse_model_arguments
from finetune.errors import UserError, exit_code
from finetune.exporting.card import CARD
from finetune.recipe import find_recipe, load_recipe


def main(argv: list[str]) -> int:
    return exit_code(run, argv)


def run(argv: list[str]) -> int:
    """Evaluate the model on the command line; returns the exit code."""
    given = parse_model_arguments("eval-voice", __doc__, argv)
    if given is None:
        return 0
    model = given.models[-1]
    name = find_recipe_of_model(model, given.recipe)
    evaluate = load_recipe(find_recipe(name)).inference.evaluate
    if evaluate is None:
        raise UserError(f"--model {model}: the recipe {name} has no evaluation of voices")
    return evaluate(model, given.rest)


def find_recipe_of_model(model: Path, given: str | None) -> str:
    """The recipe of a run, a checkpoint or an exported folder, or the one `given` with --recipe. Raises `UserError` if there is none."""
    if not model.is_dir():
        raise UserError(f"--model {model}: no such folder; give a run, one of its checkpoints, or an exported folder")
    if given is not None or (model / CARD).is_file():
        return find_recipe_name(model, given)
    from finetune.checkpointing import checkpoint

    return find_recipe_name(checkpoint.find(model), None)
