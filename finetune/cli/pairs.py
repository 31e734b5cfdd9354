"""overtone pairs MODEL --texts FILE --data ROWS.jsonl --asr MODEL --out FOLDER …

Makes pairs of clips for preference optimization (`--recipe voice_dpo`): the voice speaks each text several times, the clips are judged by
WER, speaker similarity, pace, ending, silence, clipping and repetition, and the best and the worst clip become a pair if the difference is
clear. MODEL is a run, one of its checkpoints, or an exported folder, whose recipe has further options; they are listed below, those of one
recipe with --recipe NAME --help.
"""

from __future__ import annotations

from overtone.finetune.argument_parsing import also_known
from overtone.finetune.cli.eval_voice import export_at_strength, find_evaluated
from overtone.finetune.cli.generate import MODEL_FLAGS, parse_model_arguments
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.recipe import find_recipe, load_inference
from overtone.finetune.terminal import announce_torch


@catch_user_errors
@also_known(*MODEL_FLAGS)
def main(argv: list[str]) -> int:
    """Make pairs with the model on the command line; returns the exit code."""
    named = ["--model", *argv] if argv and not argv[0].startswith("-") else argv
    given = parse_model_arguments("pairs", __doc__, named)
    if given is None:
        return 0
    model, *others = given.models
    if others:
        raise UserError(f"{len(given.models)} models, {', '.join(given.models)}: pairs are clips of one model; give one")
    folder, name = find_evaluated(model, given.recipe, given.rest)
    pairs = load_inference(find_recipe(name)).pairs
    if pairs is None:
        raise UserError(f"{model}: no recipe learns from pairs of clips of {name}; give a voice of voice_clone, voice_dpo or voice_grpo")
    announce_torch(f"the model {model}")
    return pairs(export_at_strength(folder, name, given.strength), given.rest)
