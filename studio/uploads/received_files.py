"""Stores files that a browser sends in pieces. A file has its name only when it is whole; nothing is replaced in silence.

Pieces are collected in the studio's own folder, so that no verb sees a part of a file.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from overtone.finetune.errors import UserError, format_count
from overtone.finetune.storage import files, folder_handles
from overtone.studio.folder_content import PLACE
from overtone.studio.uploads.file_names import make_safe_path
from overtone.studio.uploads.speaker_consent import CONSENT

PARTS = PLACE / "uploads"
"""Folder of files that are not whole yet."""
LARGEST_PIECE = 2**23
LARGEST_FILE = 2**34
MOST_FILES = 50_000
"""Files in a folder; more are for a terminal."""
ABANDONED = 24 * 3600
"""Seconds after which a part without a new piece is removed."""


@dataclass(frozen=True)
class FilePiece:
    """One piece of a file."""

    id: str
    """Chosen by the browser, one for each file: hexadecimal digits."""
    folder: str
    """Folder relative to the studio's."""
    name: str
    """Path of the file below the folder, as its sender calls it."""
    offset: int
    size: int
    """Bytes of the whole file."""
    replace: bool
    """True if the person wants to replace a file with this name."""


@dataclass(frozen=True)
class StoredFile:
    """The outcome of a piece."""

    path: str
    """Path of the file below its folder."""
    is_whole: bool
    was_there: bool
    """True if the same file was there already."""


def store_piece(place: Path, piece: FilePiece, content: bytes) -> StoredFile:
    """Store a piece, and with the last one the file. Raises `UserError` for a piece that does not follow the one before, a file that is too
    large, and a name that another file has."""
    path = make_safe_path(piece.name)
    target = place / piece.folder / path
    if path.name.lower() == CONSENT:
        raise UserError(f"{path}: the studio keeps the consent under this name; rename the file")
    end = piece.offset + len(content)
    if piece.size > LARGEST_FILE or end > piece.size or (not content and piece.size):
        raise UserError(f"{path}: bytes {piece.offset} to {end} of {piece.size}; send files of at most {LARGEST_FILE} bytes, in order")
    part = place / PARTS / piece.id
    with files.explain_write_errors(target.parent):
        if piece.offset == 0:
            begin_file(place, target, piece)
        files.append_block(part, piece.offset, content)
        try:
            was_there = end == piece.size and finish_file(part, target, piece.replace)
        except (OSError, UserError):
            files.discard(part)
            raise
    return StoredFile(str(path), is_whole=end == piece.size, was_there=was_there)


def begin_file(place: Path, target: Path, piece: FilePiece) -> None:
    """Check that there is room for a file, and remove parts that nobody finishes. Raises `UserError`."""
    files.make_private(place / PLACE)
    parts = files.make_folder(place / PARTS)
    for one in os.scandir(parts):
        with contextlib.suppress(FileNotFoundError):  # another request removes it
            if time.time() - one.stat(follow_symlinks=False).st_mtime > ABANDONED:
                files.discard(Path(one.path))
    files.require_space(place, piece.size, f"{target.name}")
    if folder_handles.stat_without_following(target.parent) is not None and sum(1 for _ in os.scandir(target.parent)) >= MOST_FILES:
        raise UserError(f"{piece.folder} has {format_count(MOST_FILES, 'file')}; copy more into it in a terminal")


def finish_file(part: Path, target: Path, replace: bool) -> bool:
    """Give a whole file its name; returns whether the same file was there already. Raises `UserError` if another one was."""
    if replace:
        files.move_over(part, target)
        return False
    if files.move_if_absent(part, target):
        return False
    try:
        is_same = files.digest(part) == files.digest(target)
    except OSError:  # a folder, or a file that cannot be read
        is_same = False
    if is_same:
        files.discard(part)
        return True
    raise UserError(f"{target.name} exists with other content; it was not replaced. Rename your file, or remove the old one")
