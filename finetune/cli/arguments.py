"""Parsing of a verb's command line with errors that name the nearest valid flag or folder. Imports no torch."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path

from finetune.errors import UserError


def parse_arguments(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """What `parser` finds in `argv`. Raises `UserError` for an unknown flag, with the nearest valid one."""
    known = [flag for flag in parser.format_usage().replace("[", " ").replace("]", " ").split() if flag.startswith("--")]
    for token in argv:
        flag = token.partition("=")[0]
        if flag == "--":
            break
        if flag.startswith("--") and not any(each.startswith(flag) for each in [*known, "--help"]):
            near = difflib.get_close_matches(flag, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the flags are {', '.join([*known, '--help'])}"
            raise UserError(f"unknown flag {flag}; {hint}")
    return parser.parse_args(argv)


def check_run_exists(run: Path) -> None:
    """Raise `UserError` for a run's folder that does not exist, with the most similar name there."""
    place = Path(run.anchor)
    for part in run.relative_to(run.anchor).parts:
        if not (place / part).exists():
            others = [path.name for path in place.iterdir() if path.is_dir()] if place.is_dir() else []
            near = difflib.get_close_matches(part, others, n=1)
            hint = f"did you mean {place / near[0]}?" if near else "give the folder of a run, which contains checkpoints/"
            raise UserError(f"{run}: no such folder; {hint}")
        place /= part
