"""Help of the verbs of this recipe, and how its training data is made. Must not import torch: `--help` reads this module."""

from __future__ import annotations

from .cli_arguments import make_chat_parser, make_generate_parser, make_serve_parser

DATA = """To make some from conversations:
  overtone text chats.jsonl --out data/chats
or see the whole chain on a small example: python -m overtone.recipes.llm_sft.demo"""
"""How training data is made."""
DATA_VERB = "text"
"""Of data_prep: converts raw data."""
ROW_KEYS = ({"messages"}, {"prompt", "completion"}, {"audio"})
"""A training row has all keys of one of these; of a clip of speech, reading it says which recipe trains it."""
HELP = {
    "generate": lambda: make_generate_parser().print_help(),
    "chat": lambda: make_chat_parser().print_help(),
    "serve": lambda: make_serve_parser().print_help(),
}
"""Verb → prints its options."""
