"""Parsing of a verb's command line with errors that name the nearest valid verb, flag, choice or folder. Imports no torch."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from overtone.finetune.addresses import looks_like_url
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError
from overtone.finetune.storage.folder_handles import name_paths

CHOICE = re.compile(r"argument (?P<name>.*?): invalid choice: '(?P<given>.*)' \(choose from (?P<choices>.*)\)", re.DOTALL)
"""argparse's message for a value that is not among the choices."""


class UnknownFlagError(UserError):
    """A flag that a verb does not have."""

    def __init__(self, flag: str, known: Collection[str]) -> None:
        self.flag, self.known = flag, known
        super().__init__(f"unknown flag {flag}; {suggest_word(flag, [*known, '--help'], 'the flags')}")


@contextmanager
def also_known(*flags: str) -> Iterator[None]:
    """Suggest these flags too for an unknown one: a verb takes them from the command line before a recipe parses the rest."""
    try:
        yield
    except UnknownFlagError as error:
        raise UnknownFlagError(error.flag, list(dict.fromkeys([*flags, *error.known]))) from None


def parse_arguments(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Return what `parser` finds in `argv`. Raises `UserError` for what it does not accept: for an unknown flag or choice with the nearest
    one."""
    name_paths(argv)
    known = re.findall(r"--\w[\w-]*", parser.format_usage())
    for token in argv:
        flag = token.partition("=")[0]
        if flag == "--":
            break
        if flag.startswith("--") and flag not in (*known, "--help"):
            raise UnknownFlagError(flag, known)

    def refuse(message: str) -> NoReturn:
        raise UserError(_explain_choice(message) or f"{message}; `{parser.prog} --help` describes the arguments")

    parser.error = refuse  # type: ignore[method-assign]  # otherwise argparse prints its usage and ends the process
    arguments = parser.parse_args(argv)
    for name, value in vars(arguments).items():
        for path in value if isinstance(value, list | tuple) else [value]:
            if isinstance(path, Path) and looks_like_url(path):  # as a path, it would be a folder whose name may contain a password
                flag = f"--{name.replace('_', '-')}"
                shown = flag if flag in known else name
                raise UserError(f"{shown} {path}: expected a path on this machine, not a URL; download it, or correct it")
    return arguments


def _explain_choice(message: str) -> str:
    """The message for an invalid choice, with the nearest valid one; empty for other messages of argparse."""
    found = CHOICE.fullmatch(message)
    if not found:
        return ""
    return _format_wrong_choice(found["name"], found["given"], re.findall(r"[^\s,']+", found["choices"]))


def check_choice(flag: str, given: str | None, choices: Collection[str]) -> None:
    """Raises `UserError` for a value that is not among the choices; None is the default. It also checks options that programs set."""
    if given is not None and given not in choices:
        raise UserError(_format_wrong_choice(flag, str(given), choices))


def _format_wrong_choice(name: str, given: str, choices: Collection[str]) -> str:
    return f"{name} {given}: no such choice; {suggest_word(given, choices, 'choices')}"


def suggest_word(given: str, known: Collection[str], what: str) -> str:
    """`did you mean WORD?` with the nearest known word; all of them if none is near. `what`: the plural of what they are."""
    near = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {near[0]}?" if near else f"{what} are {', '.join(known)}"


def check_run_exists(run: Path) -> None:
    """Raises `UserError` for a run's folder that does not exist, with the most similar name there."""
    place = Path(run.anchor)
    for part in run.relative_to(run.anchor).parts:
        if not (place / part).exists():
            others = [path.name for path in place.iterdir() if path.is_dir()] if place.is_dir() else []
            near = difflib.get_close_matches(part, others, n=1)
            hint = f"did you mean {place / near[0]}?" if near else "give the folder of a run, which contains checkpoints/"
            raise UserError(f"{run}: no such folder; {hint}")
        place /= part


def refuse_dataset(place: Path, verb: str) -> None:
    """Raises `UserError` for a dataset (its folder or a file of rows) where a run is expected. `verb`: the one that reads datasets."""
    rows = place / "train.jsonl" if place.is_dir() else place
    if rows.suffix == ".jsonl" and rows.is_file() and not (place / "checkpoints").is_dir():
        raise UserError(f"{place}: a dataset, not a run; datasets are read by: {overtone_command(verb, place)}")
