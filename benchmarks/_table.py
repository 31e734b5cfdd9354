"""The two flags of every benchmark, and the table that it prints and leaves in benchmarks/results/."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finetune import files

RESULTS = Path(__file__).parent / "results"
NOT_YET = "Not measured yet"
"""So begins what stands under a table that is still empty."""


@dataclass(frozen=True)
class Flags:
    quick: bool
    """A small setting, to see that the benchmark runs; its figures say little."""
    to: Path
    """Folder for the table."""


def read_flags(purpose: str | None) -> Flags:
    """From the command line."""
    parser = argparse.ArgumentParser(description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small setting, to see that it runs; its figures say little")
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FOLDER", help="where the table is written, as NAME.md")
    return Flags(**vars(parser.parse_args()))


def publish(name: str, flags: Flags, columns: Sequence[str], rows: Sequence[Sequence[object]], note: str) -> None:
    """Print the table and write it to NAME.md: the command that makes it, the table, and what to know when reading it."""
    command = f"`.venv/bin/python benchmarks/{name}.py{' --quick' if flags.quick else ''}`"
    lines = [columns, ["---"] * len(columns), *rows]
    table = "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)
    text = f"{command}\n\n{table}\n\n{note}\n"
    print(text)
    files.write_text(flags.to / f"{name}.md", text)
