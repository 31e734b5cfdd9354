"""A range of a file that decoders read as a file of its own."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path

from overtone.finetune.storage import input_files


@dataclass(frozen=True)
class FilePart:
    """The bytes `start` to `stop` of a file, after the bytes of `prefix`."""

    path: Path
    start: int
    stop: int
    is_whole: bool = True
    """True if this is all of the file, so that a decoder may open the file itself."""
    prefix: bytes = b""
    has_end: bool = True
    """True if the stream ends in this part as its format requires."""
    unread: int = 0
    """Bytes at the end of the file, after its last part, whose format is unknown."""

    def open(self) -> FileView:
        return FileView(self)


class FileView(io.RawIOBase):
    """An open `FilePart`, readable and seekable. Raises `OSError`, as `input_files.open_file` does."""

    def __init__(self, part: FilePart) -> None:
        self._prefix, self._start = part.prefix, part.start
        self._size = len(part.prefix) + part.stop - part.start
        self._file = input_files.open_file(part.path)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"position {base + offset} is before the start")
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._position)
        size = left if size < 0 else min(size, left)
        found = self._prefix[self._position : self._position + size]
        if len(found) < size:
            self._file.seek(self._start + self._position + len(found) - len(self._prefix))
            found += self._file.read(size - len(found))
        self._position += len(found)
        return found

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._file.close()
        super().close()
