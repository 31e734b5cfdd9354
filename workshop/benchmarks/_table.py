"""The two flags of every benchmark, and the table that it prints and leaves in workshop/benchmarks/results/."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from overtone.finetune.storage import files
from workshop.stale_figures import find_record, write_record

RESULTS = Path(__file__).parent / "results"
NOT_YET = "Not measured yet"
"""So begins what stands under a table that is still empty."""
SKIPPED = "skipped: "
"""So begins the line of a benchmark that cannot run on this machine, which ends with exit code 0 and leaves its table as it is."""


@dataclass(frozen=True)
class Flags:
    quick: bool
    """A small setting, to see that the benchmark runs; its figures say little."""
    to: Path
    """Folder for the table."""
    part: str | None = None
    """The only part that is to be measured; None: all, or there are none to choose from."""


def read_flags(purpose: str | None, parts: Sequence[str] = ()) -> Flags:
    """From the command line. `parts`: names of what can be measured by itself."""
    parser = argparse.ArgumentParser(description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="a small setting, to see that it runs; its figures say little")
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FOLDER", help="where the table is written, as NAME.md")
    if parts:
        parser.add_argument("--part", choices=parts, help="measure this alone, within ten minutes (default: all); needs --to")
    flags = Flags(**vars(parser.parse_args()))
    if flags.part and flags.to == RESULTS:
        parser.error(f"--part {flags.part} needs --to FOLDER: the table in {RESULTS} is the one of all parts")
    return flags


def publish(name: str, flags: Flags, columns: Sequence[str], rows: Sequence[Sequence[object]], note: str, is_whole: bool = True) -> None:
    """Print the table and write it to NAME.md: the command that makes it, the table, what to know when reading it, and which code a full
    run has measured. Unless the run `is_whole`, that of the earlier run stays."""
    words = f"{' --quick' if flags.quick else ''}{f' --part {flags.part}' if flags.part else ''}"
    command = f"`.venv/bin/python workshop/benchmarks/{name}.py{words}`"
    lines = [columns, ["---"] * len(columns), *rows]
    table = "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)
    path = flags.to / f"{name}.md"
    of_code = "" if words else write_record(name) if is_whole else find_record(path.read_text(encoding="utf-8") if path.is_file() else "")
    text = "\n\n".join([command, table, note, *([of_code] if of_code else [])]) + "\n"
    print(text)
    files.write_text(path, text)
