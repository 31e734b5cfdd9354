"""A conversation with an exported model, in a terminal.

python -m finetune chat --model exports/mine
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from finetune.errors import UserError

from .generation import Answerer, Manner, add_manner, load, manner_of, prompt_ids, respond

RESET, EXIT = "/reset", "/exit"


def chat(folder: Path, argv: list[str]) -> int:
    """Body of the verb: read a line, answer it with all that was said before, until /exit or the end of the input."""
    import torch

    parser = argparse.ArgumentParser(prog="python -m finetune chat --model FOLDER", description=f"Talk. {RESET} forgets, {EXIT} leaves.")
    add_manner(parser)
    asked = parser.parse_args(argv)
    manner = manner_of(asked)
    answerer = load(folder)
    if answerer.tokenizer.chat_template is None:
        raise UserError(f"--model {folder}: no chat template, so it cannot tell who speaks; `finetune generate` continues a text with it")
    torch.manual_seed(asked.seed)
    print(f"{RESET} forgets what was said, {EXIT} leaves, Ctrl-C breaks an answer off")
    opening = [] if asked.system is None else [{"role": "system", "content": asked.system}]
    history = [*opening]
    while (line := heard()) not in (None, EXIT):
        if line == RESET:
            history = [*opening]
        elif line:
            history = reply(answerer, [*history, {"role": "user", "content": line}], manner)
    return 0


def heard() -> str | None:
    """What the person types; None at the end of the input."""
    try:
        return input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return None


def reply(answerer: Answerer, history: list[dict[str, Any]], manner: Manner) -> list[dict[str, Any]]:
    """Answer aloud; returns the conversation with the answer, or without the last question if there came none."""
    from transformers import TextStreamer

    aloud = TextStreamer(answerer.tokenizer, skip_prompt=True, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    try:
        answer = respond(answerer, prompt_ids({"messages": history}, answerer.tokenizer), manner, aloud)
    except KeyboardInterrupt:
        print(" (broken off and forgotten)")
        return history[:-1]
    except UserError as error:
        print(f"error: {error}, or forget with {RESET}")
        return history[:-1]
    return [*history, {"role": "assistant", "content": answer.text}]
