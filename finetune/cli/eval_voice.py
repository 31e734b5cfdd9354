"""overtone eval-voice --model MODEL --data ROWS.jsonl …

Measures how good a voice is: intelligibility, speaker similarity and pace, and whether training helped. Takes a run, one of its
checkpoints, an exported folder, or a hub name (owner/model). The model names its recipe, which has further options; they are listed below,
those of one recipe with --recipe NAME --help.
"""

from __future__ import annotations

from pathlib import Path

from overtone.finetune.argument_parsing import also_known
from overtone.finetune.cli.generate import (
    MODEL_FLAGS,
    ensure_exported,
    find_model,
    find_recipe_name,
    locate_model,
    parse_model_arguments,
)
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.exporting.export_provenance import CARD
from overtone.finetune.recipe import find_recipe, load_inference
from overtone.finetune.terminal import announce_torch


@catch_user_errors
@also_known(*MODEL_FLAGS)
def main(argv: list[str]) -> int:
    """Evaluate the model on the command line; returns the exit code."""
    given = parse_model_arguments("eval-voice", __doc__, argv)
    if given is None:
        return 0
    model = given.models[-1]
    folder, name = find_evaluated(model, given.recipe, given.rest)
    evaluate = load_inference(find_recipe(name)).evaluate
    if evaluate is None:
        raise UserError(explain_no_evaluation(model, name))
    announce_torch(f"the model {model}")
    return evaluate(export_at_strength(folder, name, given.strength), given.rest)


def find_evaluated(model: str, recipe: str | None, rest: list[str]) -> tuple[Path, str]:
    """Return the folder of a run, a checkpoint or an exported model, and its recipe. Raises `UserError` if there is none. `rest`: as for
    `generate.find_model`."""
    folder = Path(model)
    if not folder.is_dir() or (folder / CARD).is_file():
        return find_model(model, recipe, rest)
    if recipe is not None:
        return folder, recipe
    announce_torch(f"the model {model}")
    from overtone.finetune.checkpointing import checkpoint

    return folder, find_recipe_name(checkpoint.find(folder), None)


def export_at_strength(folder: Path, recipe: str, strength: float | None) -> Path:
    """Return the export of a run or a checkpoint at a strength; without one, the folder as it is, whose checkpoints are evaluated."""
    return folder if strength is None else ensure_exported(locate_model(folder), recipe, strength)


def explain_no_evaluation(model: str, recipe: str) -> str:
    """Return the error for a model that does not speak."""
    return (
        f"--model {model}: the recipe {recipe} has no evaluation of voices; train with data.val, which evaluates at every eval.every steps"
    )
