"""Command-line arguments of `generate`. Must not import torch: `--help` reads this module."""

from __future__ import annotations

import argparse
from pathlib import Path


def make_generate_parser() -> argparse.ArgumentParser:
    """The arguments of `overtone generate`."""
    parser = argparse.ArgumentParser(
        prog="overtone generate --model MODEL",
        description="Classify images with an exported model.",
        epilog="example: overtone generate --model exports/photos --image cat.jpg dog.jpg --top 3",
        allow_abbrev=False,
    )
    parser.add_argument("--image", type=Path, nargs="+", required=True, metavar="FILE", help="images to classify")
    parser.add_argument("--top", type=int, default=5, help="number of labels to print for each image (default %(default)s)")
    return parser
