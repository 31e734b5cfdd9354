"""overtone chat --model MODEL …

Starts a conversation with an exported model in this terminal: a folder, or a hub name (owner/model). The model names its recipe, which has
further options; they are listed below, those of one recipe with --recipe NAME --help.
"""

from __future__ import annotations

from overtone.finetune.argument_parsing import also_known
from overtone.finetune.cli.generate import MODEL_FLAGS, choose_model, ensure_exported
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.recipe import find_recipe, load_inference
from overtone.finetune.terminal import announce_torch


@catch_user_errors
@also_known(*MODEL_FLAGS)
def main(argv: list[str]) -> int:
    """Chat with the model on the command line; returns the exit code."""
    chosen = choose_model("chat", __doc__, argv)
    if chosen is None:
        return 0
    model, name, given = chosen
    announce_torch(f"the model {model}")
    converse = load_inference(find_recipe(name)).chat
    if converse is None:
        raise UserError(f"the recipe {name} has no chat; use `{overtone_command('generate', '--model', model, '--text', 'TEXT')}`")
    return converse(ensure_exported(model, name, given.strength), given.rest)
