"""Command-line arguments of `generate` and `serve`. Must not import torch: `--help` reads this module."""

from __future__ import annotations

import argparse
from pathlib import Path

from overtone.recipes.serving.server_options import add_server_options


def make_generate_parser() -> argparse.ArgumentParser:
    """The arguments of `overtone generate`."""
    parser = argparse.ArgumentParser(
        prog="overtone generate --model MODEL",
        description="Transcribe recordings of any length with an exported Whisper.",
        epilog="example: overtone generate --model exports/mine --audio talk.mp3 --words",
        allow_abbrev=False,
    )
    parser.add_argument("--audio", type=Path, nargs="+", required=True, metavar="FILE", help="recordings to transcribe")
    parser.add_argument("--language", help="language by its English name or code (default: that of the run, or detected)")
    parser.add_argument("--words", action="store_true", help="print one word per line, with its start and end in seconds")
    return parser


def make_serve_parser() -> argparse.ArgumentParser:
    """The arguments of `overtone serve`."""
    parser = argparse.ArgumentParser(
        prog="overtone serve --model MODEL",
        description="Serve exported recognizers: OpenAI's transcriptions.",
        epilog="example: overtone serve --model exports/mine",
        allow_abbrev=False,
    )
    add_server_options(parser, batch=False)
    parser.add_argument("--max-seconds", type=float, default=3600.0, help="longest recording of a request in seconds (default %(default)g)")
    return parser
