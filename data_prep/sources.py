"""Which recordings there are, and who speaks in them. What cannot be read is a recording with a problem, so that it is reported."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_prep.formats import EXTENSIONS
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
    """SHA-256 of the file; empty if there is a problem."""
    speaker: str
    problem: str = ""
    """Why it cannot be read; it is then to be rejected as `unreadable`, with this text. Empty: it can."""


def scan(folder: Path, speaker: str | None, skip: Path) -> list[Source]:
    """All recordings under `folder`, sorted by name; links are followed. What lies in `skip` is ours, and hidden names are left alone.

    `speaker` None: the first sub-folder names the speaker. Raises `UserError` if there is no recording.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder that holds your recordings")
    found = [(path, problem) for path, problem in _walk(folder, skip.resolve()) if problem or not _no_recording(path)]
    if not found:
        others = told(ignored(folder, skip))
        raise UserError(
            f"{folder} holds no recordings; looked for {', '.join(EXTENSIONS)} in it and its sub-folders{others and '; found '}{others}"
        )
    return [_source(path, problem, folder, speaker) for path, problem in found]


def ignored(folder: Path, skip: Path) -> Counter[str]:
    """Files that `scan` takes for no recordings, counted by their ending in lower case, or as `hidden`; transcripts are among them."""
    return Counter(_no_recording(path) for path, problem in _walk(folder, skip.resolve()) if not problem and _no_recording(path))


def told(counts: Counter[str]) -> str:
    """`3 .txt, 1 hidden`: the most frequent first."""
    return ", ".join(f"{count} {ending}" for ending, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _walk(folder: Path, skip: Path, around: tuple[tuple[int, int], ...] = ()) -> Iterator[tuple[Path, str]]:
    """Whatever is no folder, in order, and folders that cannot be what they seem, with the problem. `around`: what holds this folder."""
    try:
        status = folder.stat()
        entries = sorted(folder.iterdir())
    except OSError as error:
        yield folder, f"a folder that cannot be listed: {error.strerror}"
        return
    here = (status.st_dev, status.st_ino)
    if here in around:
        yield folder, "a link to a folder that holds it: a loop"
        return
    for path in entries:
        if Path(os.path.realpath(path)).is_relative_to(skip):  # Path.resolve raises at a link that leads to itself
            continue
        if _hidden(path) or not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises where a folder denies access
            yield path, ""
            continue
        if path.suffix.lower() in EXTENSIONS:
            yield path, "a folder and no file, in spite of its name; what lies in it is read"
        yield from _walk(path, skip, (*around, here))


def _hidden(path: Path) -> bool:
    return path.name.startswith(".")


def _no_recording(path: Path) -> str:
    """What to count it as; empty for a recording."""
    ending = path.suffix.lower()
    return "hidden" if _hidden(path) else "" if ending in EXTENSIONS else ending or "without an ending"


def _source(path: Path, problem: str, folder: Path, speaker: str | None) -> Source:
    relative = path.relative_to(folder)
    if speaker is None and len(relative.parts) == 1 and not problem:
        raise UserError(f"--speaker-from folder: {path} lies in no sub-folder; move it into one that is named after its speaker")
    name = os.fsencode(relative.as_posix()).decode("utf-8", "backslashreplace")  # Linux allows names that are not text; JSON does not
    digest, problem = ("", problem) if problem else _digest(path)
    return Source(path, name, digest, speaker_name(speaker or name.split("/")[0]), problem)


def _digest(path: Path) -> tuple[str, str]:
    """Of a file; or empty, and what is wrong with it. A pipe is not opened: that would wait for its writer."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "", "neither a file nor a folder, but a pipe, a socket or a device"
        return files.digest(path), ""
    except OSError as error:
        link = f"a link to {os.readlink(path)!r}: " if path.is_symlink() else ""  # noqa: PTH115 - as text, whatever it names
        return "", f"{link}it cannot be read: {error.strerror}"
