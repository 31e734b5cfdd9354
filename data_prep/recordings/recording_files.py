"""Find the recordings in a folder, with their speakers. An unreadable file becomes a recording with a problem, so that it is reported."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_prep.audio.reader import EXTENSIONS
from data_prep.manifest import parse_speaker
from finetune.errors import UserError
from finetune.storage import files


@dataclass(frozen=True)
class RecordingSource:
    """One recording."""

    path: Path
    name: str
    """Path relative to the folder of recordings, with forward slashes."""
    digest: str
    """SHA-256 of the file; empty if it cannot be read."""
    speaker: str
    problem: str = ""
    """Why it cannot be read (it is rejected as `unreadable` with this text); empty: readable."""


def find_recordings(folder: Path, speaker: str | None, skip: Path) -> list[RecordingSource]:
    """All recordings under `folder`, sorted by name. Links are followed; the output folder `skip` and hidden names are ignored.

    `speaker` None: the first sub-folder names the speaker. Raises `UserError` if there are no recordings.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder with your recordings")
    found = [(path, problem) for path, problem in _walk_files(folder, skip.resolve()) if problem or not _classify_ignored(path)]
    if not found:
        others = format_counts(count_ignored(folder, skip))
        raise UserError(
            f"{folder} has no recordings; looked for {', '.join(EXTENSIONS)} in it and its sub-folders{others and '; found '}{others}"
        )
    return [_make_source(path, problem, folder, speaker) for path, problem in found]


def count_ignored(folder: Path, skip: Path) -> Counter[str]:
    """Number of files that `find_recordings` ignores, by lower-case suffix or as `hidden`; transcripts are among them."""
    return Counter(
        _classify_ignored(path) for path, problem in _walk_files(folder, skip.resolve()) if not problem and _classify_ignored(path)
    )


def format_counts(counts: Counter[str]) -> str:
    """`3 .txt, 1 hidden`, most frequent first."""
    return ", ".join(f"{count} {ending}" for ending, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _walk_files(folder: Path, skip: Path, around: tuple[tuple[int, int], ...] = ()) -> Iterator[tuple[Path, str]]:
    """Yield (path, problem) of all files in order, and of folders that cannot be read. `around`: device and inode of parent folders."""
    try:
        status = folder.stat()
        entries = sorted(folder.iterdir())
    except OSError as error:
        yield folder, f"the folder cannot be listed: {error.strerror}"
        return
    here = (status.st_dev, status.st_ino)
    if here in around:
        yield folder, "a link to a parent folder (a loop)"
        return
    for path in entries:
        if Path(os.path.realpath(path)).is_relative_to(skip):  # Path.resolve raises for a link to itself
            continue
        if _is_hidden(path) or not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises where a folder denies access
            yield path, ""
            continue
        if path.suffix.lower() in EXTENSIONS:
            yield path, "a folder, despite its name; its contents are read"
        yield from _walk_files(path, skip, (*around, here))


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".")


def _classify_ignored(path: Path) -> str:
    """Category of an ignored file; empty for a recording."""
    ending = path.suffix.lower()
    return "hidden" if _is_hidden(path) else "" if ending in EXTENSIONS else ending or "without an ending"


def _make_source(path: Path, problem: str, folder: Path, speaker: str | None) -> RecordingSource:
    relative = path.relative_to(folder)
    if speaker is None and len(relative.parts) == 1 and not problem:
        raise UserError(f"--speaker-from folder: {path} is not in a sub-folder; move it into a sub-folder named after its speaker")
    name = os.fsencode(relative.as_posix()).decode(
        "utf-8", "backslashreplace"
    )  # Linux allows names that are not valid UTF-8; JSON does not
    digest, problem = ("", problem) if problem else _digest_file(path)
    return RecordingSource(path, name, digest, parse_speaker(speaker or name.split("/")[0]), problem)


def _digest_file(path: Path) -> tuple[str, str]:
    """(SHA-256 digest, problem) of a file. A pipe is not opened, because that would wait for its writer."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "", "not a regular file but a pipe, a socket or a device"
        return files.digest(path), ""
    except OSError as error:
        link = f"a link to {os.readlink(path)!r}: " if path.is_symlink() else ""  # noqa: PTH115 - as text, whatever it names
        return "", f"{link}cannot be read: {error.strerror}"
