"""Command-line arguments of `generate`. Must not import torch: `--help` reads this module."""

from __future__ import annotations

import argparse
from pathlib import Path


def make_generate_parser() -> argparse.ArgumentParser:
    """The arguments of `overtone generate`."""
    parser = argparse.ArgumentParser(
        prog="overtone generate --model MODEL",
        description="Transcribe recordings of any length with an exported Whisper.",
        epilog="example: overtone generate --model exports/mine --audio talk.mp3 --words",
    )
    parser.add_argument("--audio", type=Path, nargs="+", required=True, metavar="FILE", help="recordings to transcribe")
    parser.add_argument("--language", help="language by its English name or code (default: detected)")
    parser.add_argument("--words", action="store_true", help="print one word per line, with its start and end in seconds")
    return parser
