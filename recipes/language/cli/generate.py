"""The verb `generate`: prints answers to prompts.

overtone generate --model exports/mine --prompt "Good day. Who are you?"
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from overtone.data_prep.parallel.process_pool import Failure
from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.finetune.storage.strict_json import loads_object
from overtone.finetune.storage.text_lines import read_lines
from overtone.finetune.terminal import print_content, print_diagnostic
from overtone.recipes.language.answer_generation import (
    GeneratedAnswer,
    check_length,
    load_model,
    make_chat_row,
    make_row,
    tokenize_prompt,
)
from overtone.recipes.language.serving.answer_streaming import AnswerStreamer, make_request
from overtone.recipes.language.text_generator import AnswerSettings
from overtone.recipes.ray_generation import GenerationEngine, explain_failures, open_engine, read_engine, run_batches
from overtone.recipes.serving.running_batch_interface import STOP

from .arguments import make_generate_parser

STDIN = "-"


def generate(folder: Path, argv: list[str]) -> int:
    """Run the verb: check the arguments, load the model, print the answers. Raises `UserError` for a prompt that cannot be answered."""
    arguments = parse_arguments(make_generate_parser(), argv)
    engine = read_engine(arguments)
    if engine.engine == "ray" and arguments.prompt_file is None:
        raise UserError("--engine ray answers a file of prompts; give --prompt-file FILE instead of --prompt, or remove --engine")
    settings = read_settings(arguments)
    prompts = read_prompts(arguments)
    loaded = load_model(folder)
    rows = [make_row(prompt, arguments.system, loaded.tokenizer) if isinstance(prompt, str) else prompt for prompt in prompts]
    tokenized = [tokenize_prompt(row, loaded.tokenizer) for row in rows]
    for ids in tokenized:  # all before the first answer, because an error after an hour of answers would come late
        check_length(ids, loaded)
    if engine.engine == "ray":
        del loaded  # its memory is for the workers
        return print_distributed_answers(folder, tokenized, settings, engine)
    answers = AnswerStreamer(loaded)
    for number, ids in enumerate(tokenized):
        print_answer(number, len(tokenized), answer_prompt(answers, settings, (number, ids)), settings)
    return 0


def answer_prompt(answers: AnswerStreamer, settings: AnswerSettings, prompt: tuple[int, list[int]]) -> GeneratedAnswer:
    """Return the answer to a prompt (its number in the file, token ids). Its randomness depends on the seed and its number alone."""
    number, ids = prompt
    pieces, texts = answers.stream(make_request(answers.loaded, ids, settings, number)), list[str]()
    while True:
        try:
            texts.append(next(pieces).text)
        except StopIteration as end:
            return GeneratedAnswer("".join(texts), end.value == STOP)


def print_answer(number: int, count: int, answer: GeneratedAnswer, settings: AnswerSettings, out: TextIO | None = None) -> None:
    """Print the answer to one of `count` prompts. `out`: None is the standard output."""
    print_content(answer.text if count == 1 else f"── {number + 1}\n{answer.text}", out)
    if not answer.ended:
        print_diagnostic(f"(cut off after {settings.max_new_tokens} tokens, or at the model's last position, before the answer ended)")


def print_distributed_answers(folder: Path, tokenized: list[list[int]], settings: AnswerSettings, engine: GenerationEngine) -> int:
    """Print the answers of a Ray cluster's workers in the order of the prompts, as this process would; returns the exit code. Raises
    `UserError` at the end if prompts have failed."""
    shared = files.fresh_folder(Path.cwd(), ".generate")
    prompts, found = [*enumerate(tokenized)], dict[int, GeneratedAnswer | Failure]()
    printed, failures, out = 0, list[str](), sys.stdout
    try:
        # Ray prints messages about its workers to the standard output, among the answers.
        with contextlib.redirect_stdout(sys.stderr), open_engine(engine, shared, [folder]) as remote:
            assert remote is not None
            for index, answer in run_batches(prompts, partial(open_model, folder, settings), remote):
                found[index] = answer
                while printed in found:
                    ready = found.pop(printed)
                    if isinstance(ready, Failure):
                        failures.append(ready.why)
                        print_diagnostic(f"prompt {printed + 1}: no answer: {ready.why}")
                    else:
                        print_answer(printed, len(prompts), ready, settings, out)
                    printed += 1
    finally:
        files.discard(shared)
    if failures:
        raise UserError(explain_failures(failures, len(failures), "prompt"))
    return 0


@contextlib.contextmanager
def open_model(folder: Path, settings: AnswerSettings, _number: int) -> Iterator[Callable[[tuple[int, list[int]]], GeneratedAnswer]]:
    """Load the model in this process; yields the function that answers a prompt."""
    yield partial(answer_prompt, AnswerStreamer(load_model(folder)), settings)


def read_settings(arguments: argparse.Namespace) -> AnswerSettings:
    """Return the settings on the command line. Raises `UserError` for a number that is out of range."""
    settings = AnswerSettings(arguments.max_new_tokens, arguments.temperature, arguments.top_p, arguments.seed)
    settings.check()
    return settings


def read_prompts(arguments: argparse.Namespace) -> list[str | dict[str, Any]]:
    """Return prompts as text, or as rows with messages. Raises `UserError` for an empty prompt, and for a file that cannot be read."""
    if arguments.prompt_file is None:
        prompt = sys.stdin.read().removesuffix("\n") if arguments.prompt == STDIN else arguments.prompt
        if not prompt.strip():
            given = "standard input" if arguments.prompt == STDIN else "--prompt"
            raise UserError(f'{given} is empty; give a text, as in --prompt "Good day. Who are you?"')
        return [prompt]
    try:
        lines = read_lines(arguments.prompt_file)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--prompt-file {arguments.prompt_file}: cannot be read ({error})") from None
    places = ((f"{arguments.prompt_file}:{number}", line) for number, line in enumerate(lines, 1) if line.strip())
    prompts = [_parse_line(line, place, arguments.system) for place, line in places]
    if not prompts:
        raise UserError(f"--prompt-file {arguments.prompt_file}: contains no prompt; write one per line")
    return prompts


def _parse_line(line: str, place: str, system: str | None) -> str | dict[str, Any]:
    """One line of a prompt file: a text as it is, or a row with the system message added. `place`: file and line, for errors."""
    if not line.lstrip().startswith("{"):
        return line
    try:
        return make_chat_row(loads_object(line), system)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
