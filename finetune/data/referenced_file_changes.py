"""Files that rows of a data file name, such as images: found before they are read, and compared with their state when they were cached."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, strict_json


def describe_files(names: Iterable[str], folder: Path) -> list[str]:
    """Return a line of JSON `[name, bytes, modified_ns]` for each file. `names`: paths relative to `folder`. Raises `UserError` for one
    that is not a file, or is outside of `folder`."""
    found = []
    for name in names:
        path = files.resolve_under(folder, name)
        try:
            size, modified = _stat(path)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{name!r} cannot be read in {folder} ({strict_json.one_line(error)}); paths are relative to the file"
            ) from None
        found.append(json.dumps([name, size, modified]))
    return found


def find_change(lines: Iterable[str], folder: Path) -> str | None:
    """Return what has happened to the first changed file since `describe_files` has written these lines; None if all are as they were.
    Raises `ValueError` for an invalid line."""
    for line in lines:
        match strict_json.loads(line):
            case [str(name), int(size), int(modified)]:
                try:
                    now = _stat(folder / name)
                except (OSError, ValueError) as error:
                    return f"the file {name!r}, which a row names, cannot be read ({strict_json.one_line(error)})"
                if now != (size, modified):
                    return f"the file {name!r}, which a row names, has changed"
            case _:
                raise ValueError(f"{line!r:.80} describes no file")
    return None


def _stat(path: Path) -> tuple[int, int]:
    """Bytes and time of the last change, in ns. Raises `OSError`, also for a folder."""
    if path.is_dir():
        raise IsADirectoryError("it is a folder")
    found = path.stat()
    return found.st_size, found.st_mtime_ns
