"""overtone ls [FOLDER …]

List the runs and exports in these folders (default: runs/ and exports/), and the recipes of this installation. A run is running, finished,
stopped (a signal, a STOP file, the time budget: the same command resumes it), failed (`overtone check RUN` shows what can be resumed), or
refused: its config or data was wrong, and no step was trained.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.exporting.export_provenance import CARD
from overtone.finetune.terminal import print_line, printable

if TYPE_CHECKING:
    from overtone.finetune.monitoring.run_summary import RunSummary

DEFAULT = ("runs", "exports")
DEPTH = 3
"""Folders below a given one in which runs and exports are found."""


@dataclass(frozen=True)
class ExportSummary:
    """One exported folder in the list."""

    folder: Path
    recipe: str
    form: str
    """The recipe's export format."""
    source: str
    """Checkpoint that was exported."""
    bytes: int


@catch_user_errors
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "overtone ls", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="a run, an export, or a folder of them")
    given = parse_arguments(parser, argv).folders
    if missing := [str(folder) for folder in given if not folder.is_dir()]:
        raise UserError(f"{', '.join(missing)}: no such folder; without a folder, `overtone ls` lists runs/ and exports/")
    from overtone.finetune.monitoring import run_summary

    runs, exports = list[run_summary.RunSummary](), list[ExportSummary]()
    for folder in find_folders(given or [Path(name) for name in DEFAULT]):
        if (folder / CARD).is_file():
            exports.append(summarize_export(folder))
        else:
            runs.append(run_summary.summarize_run(folder))
    print_table(
        "runs",
        ("run", "recipe", "state", "step", "best evaluation", "size"),
        [
            (str(one.folder), one.recipe, describe_state(one), step, describe_best(one), describe_bytes(one.bytes))
            for one in runs
            for step in [str(one.step) if one.total is None else f"{one.step}/{one.total}"]
        ],
    )
    print_table(
        "exports",
        ("export", "recipe", "format", "from", "size"),
        [(str(one.folder), one.recipe, one.form, one.source, describe_bytes(one.bytes)) for one in exports],
    )
    if not given:
        from overtone.finetune.recipe import built_in_recipes

        print_line(f"recipes: {', '.join(built_in_recipes())}   (`overtone cp RECIPE` copies one to change it)")
    return 0


def find_folders(places: Sequence[Path], depth: int = DEPTH) -> Iterator[Path]:
    """Yield runs and exports at and below these folders, sorted. Symbolic links are not followed, hidden folders are skipped."""
    from overtone.finetune.monitoring.run_summary import is_run

    for place in sorted(places):
        if (place / CARD).is_file() or is_run(place):
            yield place
        elif depth and place.is_dir():
            try:
                inside = [Path(entry.path) for entry in os.scandir(place) if entry.is_dir(follow_symlinks=False) and entry.name[:1] != "."]
            except OSError as error:
                raise UserError(f"{place} cannot be listed ({error.strerror or error}); give another folder") from error
            yield from find_folders(inside, depth - 1)


def summarize_export(folder: Path) -> ExportSummary:
    """Return what an export's card says. A value that is not a text counts as empty."""
    from overtone.finetune.monitoring.run_records import read_json
    from overtone.finetune.monitoring.run_summary import count_bytes

    facts = read_json(folder / CARD)
    recipe, form, source = (value if isinstance(value := facts.get(key), str) else "" for key in ("recipe", "format", "checkpoint"))
    return ExportSummary(folder, recipe, form, source, count_bytes(folder))


def describe_state(run: RunSummary) -> str:
    return f"{run.state} ({run.reason})" if run.reason not in ("", run.state) else run.state


def describe_best(run: RunSummary) -> str:
    return "" if run.best_value is None else f"{run.best_metric} {run.best_value:.4f} at {run.best_step}"


def describe_bytes(count: int) -> str:
    """Return a size in the units of disk vendors: 1 GB = 10⁹ bytes."""
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1000:.0f} kB"


def print_table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows under their heads in columns; folders that hold control characters are escaped."""
    if not rows:
        print_line(f"no {title} here")
        return
    cells = [head, *(tuple(printable(cell).replace("\n", "\\n").replace("\t", "\\t") or "–" for cell in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print_line()
