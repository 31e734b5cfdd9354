"""Makes the name of a file that a browser sends safe for every disk, shell and page."""

from __future__ import annotations

import re
import unicodedata
from pathlib import PurePosixPath

from overtone.finetune.errors import UserError

DEEPEST = 4
"""Parts of a path, the file included."""
LONGEST = 150
"""Bytes of a part."""
REPLACED = re.compile(r'[/\\:*?"<>|$`\x00-\x1f\x7f]')
"""Characters that another system refuses in names, or that a shell reads."""


def make_safe_path(given: str) -> PurePosixPath:
    """Return the path below a folder at which a file is stored. Sub-folders stay, since they may name speakers.

    Control and format characters and `REPLACED` become `_`; a part begins with none of `.`, `-`, `~` and a space, so that it is neither
    hidden, nor an option, nor another place. Raises `UserError` for a path that is deeper than `DEEPEST`.
    """
    parts = [part for part in given.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    if len(parts) > DEEPEST:
        raise UserError(f"{given[:200]!r} is in {len(parts) - 1} folders; put it in at most {DEEPEST - 1}")
    return PurePosixPath(*(make_safe_part(part) for part in parts or ["file"]))


def make_safe_part(part: str) -> str:
    """Return a safe name of one file or folder."""
    text = unicodedata.normalize("NFC", part.encode("utf-8", "replace").decode())
    text = "".join(character if character.isprintable() else "_" for character in REPLACED.sub("_", text))
    text = text.lstrip(".-~ ").rstrip(". ") or "file"
    stem, dot, ending = text.rpartition(".")
    if not dot or len(ending) > 20:
        stem, ending = text, ""
    room = LONGEST - len((dot + ending).encode() if ending else b"")
    return stem.encode()[:room].decode(errors="ignore") + (f".{ending}" if ending else "")
