"""overtone eval-voice --model MODEL --data ROWS.jsonl …

Measures how good a voice is: intelligibility, speaker similarity and pace, and whether training helped. Takes a run, one of its
checkpoints, an exported folder, or a hub name (owner/model). The model names its recipe, which has further options; they are listed below,
those of one recipe with --recipe NAME --help.
"""

from __future__ import annotations

from pathlib import Path

from overtone.finetune.cli.generate import (
    ModelArguments,
    ensure_exported,
    find_model,
    find_recipe_name,
    locate_model,
    parse_model_arguments,
)
from overtone.finetune.errors import UserError, exit_code
from overtone.finetune.exporting.export_provenance import CARD
from overtone.finetune.recipe import find_recipe, load_inference
from overtone.finetune.terminal import announce_torch


def main(argv: list[str]) -> int:
    return exit_code(run, argv)


def run(argv: list[str]) -> int:
    """Evaluate the model on the command line; returns the exit code."""
    given = parse_model_arguments("eval-voice", __doc__, argv)
    if given is None:
        return 0
    model = given.models[-1]
    folder, name = find_evaluated(model, given)
    evaluate = load_inference(find_recipe(name)).evaluate
    if evaluate is None:
        raise UserError(f"--model {model}: the recipe {name} has no evaluation of voices")
    announce_torch(f"the model {model}")
    if given.strength is not None:
        folder = ensure_exported(locate_model(folder), name, given.strength)
    return evaluate(folder, given.rest)


def find_evaluated(model: str, given: ModelArguments) -> tuple[Path, str]:
    """The folder of a run, a checkpoint or an exported model, and its recipe. Raises `UserError` if there is none."""
    folder = Path(model)
    if not folder.is_dir() or (folder / CARD).is_file():
        return find_model(model, given.recipe, given.rest)
    if given.recipe is not None:
        return folder, given.recipe
    announce_torch(f"the model {model}")
    from overtone.finetune.checkpointing import checkpoint

    return folder, find_recipe_name(checkpoint.find(folder), None)
