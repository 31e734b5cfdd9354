"""Finds and makes the folders of recordings and of chats, from which datasets are made."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from overtone.data_prep.manifest import SUMMARY
from overtone.data_prep.recordings.recording_files import SOUND_ENDINGS
from overtone.data_prep.recordings.user_transcripts import SUFFIXES
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, folder_handles
from overtone.studio.uploads.speaker_consent import CONSENT

RECORDINGS, CHATS = "recordings", "chats"
"""Folders in which the studio makes new ones."""
TABLES = (".csv", ".jsonl", ".list")
DEPTH = 4
MOST = 100_000
"""Files that are counted; a page says that there are more."""


@dataclass(frozen=True)
class HeldFile:
    """A file in such a folder."""

    name: str
    """Path relative to the folder."""
    bytes: int


def make_upload_folder(place: Path, kind: str, name: str) -> str:
    """Make a new folder for recordings or chats; returns its path relative to `place`. Raises `UserError` if it exists."""
    folder = place / kind / name
    if folder_handles.stat_without_following(folder) is not None:
        raise UserError(f"{kind}/{name} exists already; choose it in the list, or another name")
    with files.explain_write_errors(folder):
        files.make_folder(folder)
    return f"{kind}/{name}"


def count_files(place: Path, kind: str) -> list[tuple[str, int]]:
    """Return the folders of recordings or chats with the number of their files, sorted; of recordings also other folders at the top that
    hold some."""
    found = [Path(one.path) for one in _scan(place / kind) if one.is_dir(follow_symlinks=False)]
    for one in _scan(place) if kind == RECORDINGS else []:
        if one.is_dir(follow_symlinks=False) and one.name not in (RECORDINGS, CHATS) and not Path(one.path, SUMMARY).is_file():
            inside = _scan(Path(one.path))
            found += [Path(one.path)] if any(Path(entry.name).suffix.lower() in SOUND_ENDINGS for entry in inside) else []
    return [(str(path.relative_to(place)), len(list_held_files(path))) for path in sorted(found)]


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder that are not hidden, sorted; none if it cannot be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return sorted((one for one in entries if not one.name.startswith(".")), key=lambda one: one.name)
    return []


def list_held_files(folder: Path) -> list[HeldFile]:
    """Return the files in a folder and its sub-folders, sorted by name, `MOST` at most; without links, hidden files and the consent."""
    found = list[HeldFile]()
    for one in _walk(folder, DEPTH):
        if len(found) == MOST:
            break
        with contextlib.suppress(OSError):
            found.append(HeldFile(str(Path(one.path).relative_to(folder)), one.stat(follow_symlinks=False).st_size))
    return sorted((one for one in found if one.name != CONSENT), key=lambda one: one.name)


def _walk(folder: Path, depth: int) -> Iterator[os.DirEntry[str]]:
    for one in _scan(folder):
        if one.is_file(follow_symlinks=False):
            yield one
        elif depth and one.is_dir(follow_symlinks=False):
            yield from _walk(Path(one.path), depth - 1)


def count_recordings(held: list[HeldFile]) -> int:
    """Return how many of the files have an ending of a sound format."""
    return sum(Path(one.name).suffix.lower() in SOUND_ENDINGS for one in held)


def has_transcripts(held: list[HeldFile]) -> bool:
    """Return whether the files look like recordings with transcripts: a text has the name of a recording, or there is a table."""
    stems = {str(Path(one.name).with_suffix("")) for one in held if Path(one.name).suffix.lower() in SOUND_ENDINGS}
    texts = (one.name for one in held if one.name.lower().endswith((*SUFFIXES, *TABLES)))
    return any(name.lower().endswith(TABLES) or str(Path(name).with_suffix("")).removesuffix(".transcript") in stems for name in texts)
