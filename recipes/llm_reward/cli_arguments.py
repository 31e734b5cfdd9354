"""Command-line arguments of `generate`. Must not import torch: `--help` reads this module."""

from __future__ import annotations

import argparse
from pathlib import Path


def make_generate_parser() -> argparse.ArgumentParser:
    """The arguments of `overtone generate`."""
    parser = argparse.ArgumentParser(
        prog="overtone generate --model MODEL",
        description="Score rows with an exported reward model or classifier. Each row is printed as JSON with its reward, or with its "
        "class and the probabilities of all classes.",
        epilog="example: overtone generate --model exports/reward --rows answers.jsonl --out scored.jsonl",
        allow_abbrev=False,
    )
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--text", help="a text to score")
    given.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="JSONL file with a text, messages, a prompt and its completion, or a pair of answers in each line, as in training data",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSONL file to write; without it, rows are printed")
    parser.add_argument(
        "--allow-dropped",
        nargs="+",
        default=[],
        metavar="NAME",
        help="content that the chat template may drop, as options.allow_dropped in the training",
    )
    return parser
