"""Tests of `overtone.recipes.llm_sft.cli_arguments`."""

from __future__ import annotations

from overtone.recipes.llm_sft.cli_arguments import make_chat_parser, make_generate_parser, make_serve_parser


def test_arguments_are_parsed() -> None:
    assert make_generate_parser().parse_args(["--prompt", "x", "--max-new-tokens", "3"]).max_new_tokens == 3
    assert make_chat_parser().parse_args(["--system", "Be brief."]).system == "Be brief."
    served = make_serve_parser().parse_args(["--context", "99"])
    assert (served.context, served.max_new_tokens) == (99, 1024)
