"""Files that rows of a data file name. A name may be written in another way than that of its file: macOS writes é as two characters, other
systems do not distinguish case, and Windows separates folders with a backslash."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files


class AmbiguousNameError(UserError):
    """A name that fits several files."""


def find_file(root: Path, relative: str) -> Path:
    """Return the resolved path of `relative` inside `root`: that of the file with this name or, without one, of the only file whose name
    differs in its Unicode form, in case or in its separators. A path without such a file is returned as it is.

    Raises `UserError` for a path outside of `root`, and `AmbiguousNameError` for a name that fits several files.
    """
    path = files.resolve_under(root, relative)
    try:
        return path if path.exists() else _find_renamed(root, relative) or path
    except OSError:  # a name that is too long, or a folder that denies access: the reader of the file reports it
        return path


def is_renamed(root: Path, relative: str, found: Path) -> bool:
    """Return whether `find_file` found a file whose name differs."""
    return found != files.resolve_under(root, relative)


def _find_renamed(root: Path, relative: str) -> Path | None:
    here = root
    for part in relative.replace("\\", "/").split("/"):
        if part in ("", "."):
            continue
        if part == ".." or not here.is_dir():
            return None
        if not (here / part).exists():
            fitting = _list_folder(here, here.stat().st_mtime_ns).get(_fold(part), ())
            if len(fitting) > 1:
                both = " and ".join(map(repr, fitting[:2]))
                raise AmbiguousNameError(f"{relative!r} fits both {both} in {here}; write the name exactly as one of them")
            if not fitting:
                return None
            part = fitting[0]
        here /= part
    return files.resolve_under(root, str(here.relative_to(root)))


@lru_cache(maxsize=64)
def _list_folder(folder: Path, modified_ns: int) -> dict[str, tuple[str, ...]]:  # noqa: ARG001
    """Folded name → names in a folder, which is read again when its time of modification, a part of the key, changes."""
    found: dict[str, list[str]] = defaultdict(list)
    for entry in sorted(folder.iterdir()):
        found[_fold(entry.name)].append(entry.name)
    return {name: tuple(names) for name, names in found.items()}


def _fold(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
