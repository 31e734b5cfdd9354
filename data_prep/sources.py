"""Which recordings there are, and who speaks in them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from data_prep.audio import EXTENSIONS
from data_prep.manifest import speaker_name
from finetune import files
from finetune.errors import UserError


@dataclass(frozen=True)
class Source:
    """One recording."""

    path: Path
    name: str
    """Path relative to the folder of recordings, with forward slashes."""
    digest: str
    """SHA-256 of the file."""
    speaker: str


def scan(folder: Path, speaker: str | None, skip: Path) -> list[Source]:
    """All recordings under `folder`, sorted by name. `speaker` None: the first sub-folder names the speaker. What lies in `skip` is ours.

    Raises `UserError` if there is none.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder that holds your recordings")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS and path.is_file() and _visible(path, folder))
    found = [path for path in paths if not path.resolve().is_relative_to(skip.resolve())]
    if not found:
        raise UserError(f"{folder} holds no recordings; looked for {', '.join(EXTENSIONS)} in it and its sub-folders")
    return [_source(path, folder, speaker) for path in found]


def _visible(path: Path, folder: Path) -> bool:
    return not any(part.startswith(".") for part in path.relative_to(folder).parts)


def _source(path: Path, folder: Path, speaker: str | None) -> Source:
    relative = path.relative_to(folder)
    if speaker is None and len(relative.parts) == 1:
        raise UserError(f"--speaker-from folder: {path} lies in no sub-folder; move it into one that is named after its speaker")
    name = os.fsencode(relative.as_posix()).decode("utf-8", "replace")  # Linux allows names that are not text; JSON does not
    return Source(path, name, files.digest(path), speaker_name(speaker or name.split("/")[0]))
