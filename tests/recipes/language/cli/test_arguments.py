"""Tests of `overtone.recipes.language.cli.arguments`."""

from __future__ import annotations

from overtone.recipes.language.cli.arguments import make_chat_parser, make_generate_parser


def test_arguments_are_parsed() -> None:
    assert make_generate_parser().parse_args(["--prompt", "x", "--max-new-tokens", "3"]).max_new_tokens == 3
    assert make_chat_parser().parse_args(["--system", "Be brief."]).system == "Be brief."
