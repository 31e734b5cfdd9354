"""Opens files that a user, a dataset or a model's folder names: regular files only, and only as much of them as fits into memory.

A named pipe may never send anything, a device may never end, and opening one may already have an effect. All are refused by their type,
before they are opened. Reading has limits, since a sparse file of many gigabytes takes no room on a disk, and a line may have no end.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from overtone.finetune.errors import UserError

LARGEST_TEXT = 2**26
"""Bytes of a text, or of a document that is parsed as a whole, 64 MiB: the text of some fifty long books."""
LONGEST_LINE = 2**24
"""Bytes of a line, 16 MiB: a conversation of a million tokens has about 5 MB, an hour of audio codes about 4 MB. Parsed JSON takes up to
forty times the memory of its text."""
SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
PIPES = "/dev/"
"""Folder of the pipes that a shell makes for `<(…)`, and of standard input."""


class UnusableFileError(OSError, UserError):
    """A file of a kind or a size that is not read. Whoever handles files that cannot be read handles it, too; otherwise it ends the command
    with its message."""

    def __init__(self, number: int, problem: str, path: str) -> None:
        OSError.__init__(self, number, problem, path)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}; give a regular file of the usual size"


def require_regular(path: Path) -> None:
    """Check a file that a library will open. Raises `OSError` for a pipe, a device or a socket, and for a path that cannot be examined."""
    _refuse_special(path.stat().st_mode, path)


def open_file(path: Path) -> io.BufferedReader:
    """Open a file for reading. Raises `OSError`, also for a pipe, a device or a socket."""
    require_regular(path)
    return open(path, "rb", opener=_open_without_waiting)


def read_bytes(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """Return the content of a file of at most `most` bytes. Raises `OSError`, also for one with more, and for a pipe, a device or a
    socket."""
    with open_file(path) as file:
        return _read_all(file, path, most)


def read_text(path: Path, most: int = LARGEST_TEXT, encoding: str = "utf-8") -> str:
    """Read a text file with the limits of `read_bytes`, and convert every kind of line break to "\\n". Also raises `UnicodeDecodeError`."""
    return _decode(read_bytes(path, most), encoding)


def read_argument(path: Path) -> bytes:
    """Return the content of a text file that was named on the command line, where it may be a pipe of the shell: `--text-file <(…)`,
    `/dev/stdin`.

    Raises as `read_bytes`. A path in a file is never read with this function.
    """
    if path.as_posix().startswith(PIPES) and stat.S_ISFIFO(path.stat().st_mode):
        with path.open("rb") as file:
            return _read_all(file, path, LARGEST_TEXT)
    return read_bytes(path)


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their line breaks. Raises as `split_lines` and `open_file`."""
    with open_file(path) as file:
        yield from split_lines(file, path)


def split_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield the lines of an open file with their line breaks. Raises `UserError` with the line's number for one of more than `LONGEST_LINE`
    bytes."""
    number = 1
    while line := read_line(file, path, number):
        yield line
        number += 1


def read_line(file: IO[bytes], path: Path, number: int) -> bytes:
    """Return the next line of an open file, or its rest, with the line break; empty at its end. `number`: that of the line, from 1.

    Raises `UserError` for a line of more than `LONGEST_LINE` bytes.
    """
    line = file.readline(LONGEST_LINE + 1)
    if len(line) > LONGEST_LINE:
        raise UserError(f"{path}:{number}: the line has more than {LONGEST_LINE:,} bytes; remove or shorten it")
    return line


def _open_without_waiting(path: str, flags: int) -> int:
    """A descriptor of a regular file. If a pipe has replaced the file since it was examined, neither waits nor returns it."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    try:
        _refuse_special(os.fstat(descriptor).st_mode, Path(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_special(mode: int, path: Path) -> None:
    if (kind := SPECIAL.get(stat.S_IFMT(mode))) is not None:
        raise UnusableFileError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def _read_all(file: IO[bytes], path: Path, most: int) -> bytes:
    size = os.fstat(file.fileno()).st_size
    if size <= most and len(content := file.read(most + 1)) <= most:  # a pipe has size 0, and a file may grow
        return content
    raise UnusableFileError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))


def _decode(content: bytes, encoding: str) -> str:
    return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
