"""Help of the verbs that come without torch. `eval-voice` needs it, and prints its help through `recipe.py`."""

from __future__ import annotations


def print_generate_help() -> None:
    """Print the options of `finetune generate`, and exit as argparse does."""
    from .cli import generate

    generate.parse(["--help"])


def print_serve_help() -> None:
    """Print the options of `finetune serve`, and exit as argparse does."""
    from recipes.speech.serving import http_server

    http_server.parse(["--help"])


HELP = {"generate": print_generate_help, "serve": print_serve_help}
"""Verb → prints its options."""
