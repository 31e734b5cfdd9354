"""The verb `chat`: a conversation with an exported model in a terminal.

overtone chat --model exports/mine
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from overtone.data_prep.chats.chat_messages import Message
from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError
from overtone.finetune.terminal import print_content, print_line
from overtone.recipes.language.answer_generation import load_model, tokenize_prompt
from overtone.recipes.language.serving.answer_streaming import AnswerStreamer, make_request
from overtone.recipes.language.text_generator import AnswerSettings

from .arguments import EXIT, RESET, make_chat_parser
from .generate import read_settings


def chat(folder: Path, argv: list[str]) -> int:
    """Run the verb: read a line, answer it with the whole conversation as context, until /exit or the end of the input."""
    arguments = parse_arguments(make_chat_parser(), argv)
    settings = read_settings(arguments)
    loaded = load_model(folder)
    if loaded.tokenizer.chat_template is None:
        raise UserError(f"--model {folder}: has no chat template, so it cannot chat; `overtone generate` can continue a text with it")
    answers, number = AnswerStreamer(loaded), 0
    print_line(f"{RESET} starts a new conversation, {EXIT} ends the program, Ctrl-C stops an answer")
    opening = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    history = [*opening]
    while (line := read_line()) not in (None, EXIT):
        if line == RESET:
            history = [*opening]
        elif line:
            history = answer_last(answers, [*history, {"role": "user", "content": line}], settings, number)
            number += 1
    return 0


def read_line() -> str | None:
    """Return the line that the user types; None at the end of the input."""
    try:
        return input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        print_line()
        return None


def answer_last(answers: AnswerStreamer, history: list[Message], settings: AnswerSettings, number: int) -> list[Message]:
    """Print the answer to the last message while it is generated. `number`: how many answers there were before.

    Returns the conversation with the answer, or without the last message if there is no complete answer.
    """
    text = ""
    try:
        ids = tokenize_prompt({"messages": history}, answers.loaded.tokenizer)
        with closing(answers.stream(make_request(answers.loaded, ids, settings, number))) as pieces:
            for piece in pieces:
                print_content(piece.text, end="")
                text += piece.text
        print_content("")
    except KeyboardInterrupt:
        print_line(" (stopped; the question and this answer are not kept in the conversation)")
        return history[:-1]
    except UserError as error:
        print_line(f"error: {error}, or start a new conversation with {RESET}")
        return history[:-1]
    return [*history, {"role": "assistant", "content": text}]
