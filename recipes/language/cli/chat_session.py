"""The verb `chat`: a conversation with an exported model in a terminal.

overtone chat --model exports/mine
"""

from __future__ import annotations

from pathlib import Path

import torch

from overtone.data_prep.chats.chat_messages import Message
from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError
from overtone.finetune.terminal import print_content, print_line
from overtone.recipes.language.answer_generation import Decoding, LoadedModel, generate_answer, load_model, tokenize_prompt

from .arguments import EXIT, RESET, make_chat_parser
from .generate import make_decoding


def chat(folder: Path, argv: list[str]) -> int:
    """Run the verb: read a line, answer it with the whole conversation as context, until /exit or the end of the input."""
    arguments = parse_arguments(make_chat_parser(), argv)
    decoding = make_decoding(arguments)
    loaded = load_model(folder)
    if loaded.tokenizer.chat_template is None:
        raise UserError(f"--model {folder}: has no chat template, so it cannot chat; `overtone generate` can continue a text with it")
    torch.manual_seed(arguments.seed)
    print_line(f"{RESET} starts a new conversation, {EXIT} ends the program, Ctrl-C stops an answer")
    opening = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    history = [*opening]
    while (line := read_line()) not in (None, EXIT):
        if line == RESET:
            history = [*opening]
        elif line:
            history = answer_last(loaded, [*history, {"role": "user", "content": line}], decoding)
    return 0


def read_line() -> str | None:
    """Return the line that the user types; None at the end of the input."""
    try:
        return input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        print_line()
        return None


def answer_last(loaded: LoadedModel, history: list[Message], decoding: Decoding) -> list[Message]:
    """Print the answer to the last message while it is generated.

    Returns the conversation with the answer, or without the last message if there is no complete answer.
    """
    from transformers import TextStreamer  # takes seconds, and `--help` imports this module

    class PrintedAnswer(TextStreamer):  # the original prints control characters to a terminal as they are
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            print_content(text, end="\n" if stream_end else "")

    streamer = PrintedAnswer(loaded.tokenizer, skip_prompt=True, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    try:
        answer = generate_answer(loaded, tokenize_prompt({"messages": history}, loaded.tokenizer), decoding, streamer)
    except KeyboardInterrupt:
        print_line(" (stopped; the question and this answer are not kept in the conversation)")
        return history[:-1]
    except UserError as error:
        print_line(f"error: {error}, or start a new conversation with {RESET}")
        return history[:-1]
    return [*history, {"role": "assistant", "content": answer.text}]
