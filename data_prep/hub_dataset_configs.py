"""Reads the configurations that the README.md of a dataset on the hub declares, and matches paths against their file patterns.

https://huggingface.co/docs/hub/datasets-manual-configuration: `configs` is a list of {config_name, data_dir, data_files}, and `data_files`
is a pattern, a list of patterns, or a list of {split, path}.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from overtone.finetune.config_sources import load_yaml
from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files

HEADER = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?\n)---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
CONFIGS = re.compile(r"^configs:.*\n(?:(?:[ \t-].*)?\r?\n)*", re.MULTILINE)

ALTERNATIVES = re.compile(r"\{([^{}]*,[^{}]*)\}")
PIECES = re.compile(r"\*+|\[!?\]?[^\]]*\]|.", re.DOTALL)
"""Stars, a set of letters, or one letter of a pattern."""
MOST_ALTERNATIVES = 1000


class DataFiles(NamedTuple):
    """Files of one configuration that a card names."""

    split: str | None
    """None: the card names no split."""
    pattern: str
    """Path in the repository; `*` matches a part of a name, `**` matches folders; see `match_pattern`."""


def read_configurations(card: Path) -> dict[str, list[DataFiles]]:
    """Return configuration → its files; empty if the card lists none. Raises `UserError` for a list that cannot be understood."""
    header = HEADER.search(input_files.read_bytes(card).decode("utf-8", "replace"))
    block = CONFIGS.search(header[1]) if header else None  # only this block: other keys of cards often are no valid YAML 1.2
    entries = load_yaml(block[0], card.name).get("configs") if block else None
    if entries is None:
        return {}
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{card.name}: configs must be a list of configurations, found {entries!r:.60}")
    return {str(entry.get("config_name", "default")): _list_data_files(card, entry) for entry in entries}


def _list_data_files(card: Path, entry: Mapping[str, object]) -> list[DataFiles]:
    folder = str(entry.get("data_dir") or "").removeprefix("./").strip("/")
    prefix = "" if folder in ("", ".") else f"{folder}/"
    given = entry.get("data_files")
    if given is None:
        return [DataFiles(None, f"{prefix}**")]
    listed = [{"split": split, "path": path} for split, path in given.items()] if isinstance(given, dict) else given
    found = []
    for each in listed if isinstance(listed, list) else [listed]:
        split, paths = (each.get("split"), each.get("path")) if isinstance(each, dict) else (None, each)
        for path in paths if isinstance(paths, list) else [paths]:
            if not isinstance(path, str) or not isinstance(split, str | None):
                raise UserError(f"{card.name}: data_files must name files and splits, found {each!r:.60}")
            found.append(DataFiles(split, prefix + path.removeprefix("./")))
    return found


def match_pattern(pattern: str, path: str) -> bool:
    """Return whether a path in a repository matches a pattern of its card: `*`, `?`, `[0-9]`, `{train,test}` and `**`.

    Raises `UserError` for a pattern with more alternatives than any card needs.
    """
    return any(_match_parts(each.split("/"), path.split("/")) for each in _expand_braces(pattern))


def _expand_braces(pattern: str) -> list[str]:
    """Return the alternatives of a pattern: `{a,b}-{c,d}` → `a-c`, `b-c`, `a-d`, `b-d`; braces without a comma stand for themselves."""
    found: list[str] = []
    waiting = [pattern]
    while waiting:
        if len(found) + len(waiting) > MOST_ALTERNATIVES:
            raise UserError(f"the pattern {pattern!r:.60} of a dataset card has more than {MOST_ALTERNATIVES} alternatives")
        each = waiting.pop()
        if braces := ALTERNATIVES.search(each):
            waiting += [each[: braces.start()] + choice + each[braces.end() :] for choice in braces[1].split(",")]
        else:
            found.append(each)
    return found


def _match_parts(wanted: list[str], parts: list[str]) -> bool:
    """Match part by part, in time (parts of the pattern) · (parts of the path): a regular expression would try all ways to divide it."""
    reached = {0}  # numbers of parts of the path that the pattern up to here may take
    for at, each in enumerate(wanted):
        last = at == len(wanted) - 1
        if each == "**":
            reached = {len(parts)} if last and min(reached) < len(parts) else set() if last else {*range(min(reached), len(parts) + 1)}
        elif last and "**" in each:  # `data/train**`: the last stars also stand for folders
            reached = {len(parts) for start in reached if start < len(parts) and _match_name(each, "/".join(parts[start:]))}
        else:
            reached = {start + 1 for start in reached if start < len(parts) and _match_name(each, parts[start])}
        if not reached:
            return False
    return len(parts) in reached


def _match_name(wanted: str, name: str) -> bool:
    """Match one name, in time (length of the pattern) · (length of the name): only the last star is ever tried again."""
    pieces = PIECES.findall(wanted)
    at = taken = 0
    star, resumed = -1, 0
    while taken < len(name):
        if at < len(pieces) and pieces[at].startswith("*"):
            star, resumed = at, taken
            at += 1
        elif at < len(pieces) and _match_letter(pieces[at], name[taken]):
            at, taken = at + 1, taken + 1
        elif star >= 0:
            resumed += 1
            at, taken = star + 1, resumed
        else:
            return False
    return all(piece.startswith("*") for piece in pieces[at:])


def _match_letter(piece: str, letter: str) -> bool:
    if len(piece) > 1:  # a set of letters, such as [abc]
        return fnmatch.fnmatchcase(letter, piece)
    return piece in ("?", letter)
