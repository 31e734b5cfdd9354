"""Find the recordings in a folder, with their speakers. An unreadable file becomes a recording with a problem, so that it is reported.

A file with an ending of a sound format is a recording. One with an ending of another well-known kind (texts, pictures, tables, archives) is
not, and is not opened. For every other file, the decoder decides.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from overtone.data_prep.audio.channel_selection import AUTO, name_channel
from overtone.data_prep.audio.sandboxed_decoder import AudioDecoder
from overtone.data_prep.audio.stream_reader import EXTENSIONS, FILM_EXTENSIONS
from overtone.data_prep.manifest import parse_speaker
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files

SOUND_ENDINGS = frozenset({*EXTENSIONS, *FILM_EXTENSIONS})
SPLIT = "split"
"""Value of `--channels`: each channel is another speaker."""
OTHER_ENDINGS = frozenset(
    re.findall(
        r"\S+",
        """
    .txt .lab .json .jsonl .ndjson .csv .tsv .srt .vtt .sbv .ass .ssa .ttml .lrc .textgrid .eaf .list .md .rst .tex .html .htm .xml .yaml
    .yml .toml .ini .cfg .log .rtf .pdf .doc .docx .odt .xls .xlsx .ods .ppt .pptx .epub .png .jpg .jpeg .jpe .gif .bmp .webp .tif .tiff
    .svg .heic .avif .ico .psd .raw .zip .gz .tgz .tar .xz .bz2 .7z .rar .zst .iso .py .pyc .ipynb .js .css .sh .bat .c .h .cpp .rs .go
    .java .pt .pth .ckpt .safetensors .onnx .gguf .bin .npy .npz .h5 .parquet .arrow .feather .pkl .db .sqlite .mat .exe .dll .so .mid
    .midi .m3u .m3u8 .pls .cue .url .torrent .part .ytdl .crdownload .tmp .bak .aup .aup3 .reapeaks .pek .asd
    """,
    )
)
"""Endings of files that are never opened: they hold something else, or, as `.part`, not yet a whole recording."""


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
    """The reason why it cannot be read (it is rejected as `unreadable` with this text); empty: readable."""
    channels: str = AUTO
    """Channels that are used (`channel_selection.choose_channels`)."""
    is_split: bool = False
    """True if the other channels are recordings of other speakers."""
    synthetic: str = ""
    """Mark of synthetic speech in the file, for which it is rejected; empty: none, or such recordings are wanted."""


def find_recordings(folder: Path, speaker: str | None, skip: Path) -> list[RecordingSource]:
    """Return all recordings under `folder`, sorted by name, or the one that is this file. Links are followed; the output folder `skip` and
    hidden names are ignored.

    `speaker` None: the first sub-folder names the speaker. Raises `UserError` if there are no recordings.
    """
    if folder.is_file():
        if folder.suffix.lower() not in SOUND_ENDINGS and not _ask_decoder([folder]):
            raise UserError(f"{folder} is not a recording; give a recording, or the folder with your recordings")
        return [_make_source(folder, "", folder.parent, speaker)]
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist; give the folder with your recordings, or one recording")
    walked = list(_walk_files(folder, skip.resolve()))
    unknown = _ask_decoder([path for path, problem in walked if not problem and _is_of_unknown_kind(path)])
    found = [
        (path, problem)
        for path, problem in walked
        if problem or path in unknown or (not _is_hidden(path) and path.suffix.lower() in SOUND_ENDINGS)
    ]
    if not found:
        others = format_counts(count_ignored(folder, skip, []))
        raise UserError(
            f"{folder} has no recordings; looked for {', '.join(EXTENSIONS)}, films, and other files that can be decoded, "
            f"in it and its sub-folders{others and '; found '}{others}"
        )
    return [_make_source(path, problem, folder, speaker) for path, problem in found]


def select_channels(sources: Sequence[RecordingSource], channels: str) -> list[RecordingSource]:
    """Return the recordings with these channels; with `SPLIT` each channel of a recording with several as one of its own, with a speaker
    named after it. Their digests differ, so that clips of different channels never take each other's place."""
    if channels == AUTO:
        return list(sources)
    if channels != SPLIT:
        return [replace(source, channels=channels, digest=_digest_channel(source, channels)) for source in sources]
    found = []
    with AudioDecoder(Path(tempfile.gettempdir())) as decoder:
        for source in sources:
            count = 1 if source.problem or source.synthetic else decoder.count_channels(source.path)
            names = [name_channel(index, count) for index in range(count)] if count > 1 else []
            found += [
                replace(
                    source,
                    name=f"{source.name} ({name})",
                    channels=name,
                    is_split=True,
                    digest=_digest_channel(source, f"{SPLIT} {name}"),
                    speaker=f"{source.speaker}_{name}",
                )
                for name in names
            ] or [source]
    return found


def _digest_channel(source: RecordingSource, channels: str) -> str:
    return source.digest and hashlib.sha256(f"{source.digest} {channels}".encode()).hexdigest()


def count_ignored(folder: Path, skip: Path, found: Sequence[RecordingSource]) -> Counter[str]:
    """Return the number of files that `find_recordings` left out of `found`, by lower-case suffix or as `hidden`; transcripts are among
    them."""
    known = {source.path for source in found}
    others = (path for path, problem in _walk_files(folder, skip.resolve()) if not problem and path not in known)
    return Counter("hidden" if _is_hidden(path) else path.suffix.lower() or "without an ending" for path in others)


def _ask_decoder(paths: list[Path]) -> set[Path]:
    """Return the files that can be decoded as sound, as determined in a child process with limits."""
    if not paths:
        return set()
    with AudioDecoder(Path(tempfile.gettempdir())) as decoder:
        return {path for path in paths if decoder.holds_sound(path)}


def format_counts(counts: Counter[str]) -> str:
    """Format counts as `3 .txt, 1 hidden`, the most frequent first."""
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
        if path.suffix.lower() in SOUND_ENDINGS:
            yield path, "a folder, despite its name; its contents are read"
        yield from _walk_files(path, skip, (*around, here))


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".")


def _is_of_unknown_kind(path: Path) -> bool:
    """Return whether the type of a file is known only from its content. Pipes and empty files are not opened."""
    ending = path.suffix.lower()
    if _is_hidden(path) or ending in SOUND_ENDINGS or ending in OTHER_ENDINGS:
        return False
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0


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
    """Return (SHA-256 digest, problem) of a file. A pipe is not opened, because that would wait for its writer."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "", "not a regular file but a pipe, a socket or a device"
        return files.digest(path), ""
    except OSError as error:
        link = f"a link to {os.readlink(path)!r}: " if path.is_symlink() else ""  # noqa: PTH115 - as text, whatever it names
        return "", f"{link}cannot be read: {error.strerror}"
