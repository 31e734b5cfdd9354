"""overtone serve --model MODEL [--model MODEL …] …

Serves exported models to browsers and other programs, by default on this machine only: folders, or hub names (owner/model). The models
name their recipe, which has further options; they are listed below, those of one recipe with --recipe NAME --help.
"""

from __future__ import annotations

from overtone.finetune.argument_parsing import also_known
from overtone.finetune.cli.generate import MODEL_FLAGS, ensure_exported, find_model, parse_model_arguments
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.recipe import find_recipe, load_inference
from overtone.finetune.terminal import announce_torch


@catch_user_errors
@also_known(*MODEL_FLAGS)
def main(argv: list[str]) -> int:
    """Serve the models on the command line; returns the exit code."""
    given = parse_model_arguments("serve", __doc__, argv)
    if given is None:
        return 0
    found = {model: find_model(model, given.recipe, given.rest) for model in given.models}
    name = find_shared_recipe({model: recipe for model, (_, recipe) in found.items()})
    announce_torch(", ".join(given.models))
    serve = load_inference(find_recipe(name)).serve
    if serve is None:
        raise UserError(
            f"the recipe {name} has no server; use `{overtone_command('generate', '--model', given.models[0], '--text', 'TEXT')}`"
        )
    return serve({model: ensure_exported(folder, name, given.strength) for model, (folder, _) in found.items()}, given.rest)


def find_shared_recipe(names: dict[str, str]) -> str:
    """Return the recipe that all models share, of model → recipe. Raises `UserError` if they have different recipes."""
    if len(set(names.values())) > 1:
        listed = ", ".join(f"{model} of {name}" for model, name in names.items())
        raise UserError(f"models of different recipes ({listed}) cannot be served together; start one server for each recipe")
    return next(iter(names.values()))
