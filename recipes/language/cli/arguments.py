"""Command-line arguments of `generate` and `chat`. Must not import torch: `--help` reads this module."""

from __future__ import annotations

import argparse
from pathlib import Path

from overtone.recipes.ray_generation import add_engine_options

RESET, EXIT = "/reset", "/exit"
"""Lines that are commands in a chat."""


def make_generate_parser() -> argparse.ArgumentParser:
    """Return the arguments of `overtone generate`."""
    parser = argparse.ArgumentParser(
        prog="overtone generate --model MODEL",
        description="Generate text with an exported model.",
        epilog='example: overtone generate --model exports/mine --prompt "Good day. Who are you?"',
        allow_abbrev=False,
    )
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument(
        "--prompt", help="question to answer; for a model without a chat template, text to continue; - reads it from standard input"
    )
    prompt.add_argument("--prompt-file", type=Path, help="file with one prompt per line: text, or JSON with messages as in training data")
    _add_decoding_arguments(parser)
    add_engine_options(parser)
    return parser


def make_chat_parser() -> argparse.ArgumentParser:
    """Return the arguments of `overtone chat`."""
    parser = argparse.ArgumentParser(
        prog="overtone chat --model MODEL",
        description=f"Chat with an exported model. {RESET} starts a new conversation, {EXIT} ends the program.",
        epilog="example: overtone chat --model exports/mine --temperature 0.7",
        allow_abbrev=False,
    )
    _add_decoding_arguments(parser)
    return parser


def _add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that both verbs share."""
    group = parser.add_argument_group("decoding")
    group.add_argument("--system", help="system message at the beginning of each chat")
    group.add_argument("--max-new-tokens", type=int, default=512, help="most tokens of an answer (default %(default)s)")
    group.add_argument("--temperature", type=float, help="sample with this temperature (default: always take the most likely token)")
    group.add_argument("--top-p", type=float, help="sample from the most likely tokens with this total probability")
    group.add_argument("--seed", type=int, default=0, help="seed of the sampling (default %(default)s)")
