"""Marks of synthetic speech in audio files: the tags that generators write, so that listeners and tools can recognize it.

The bytes at both ends of a file are searched, and nothing is parsed: tags are there in every format, and the files are not trusted.
`SyntheticMark` is the mark that this package writes; others are found too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from overtone.finetune.storage import input_files
from overtone.version import __version__

SEARCHED_BYTES = 1 << 18
"""Bytes that are searched at each end of a file."""
KIND, SOURCE_TYPE = "synthetic speech", "trainedAlgorithmicMedia"
MARKS = (SOURCE_TYPE, KIND, "AI-generated", "AI generated")
"""The first is IPTC's digital source type, in XMP and in C2PA (https://cv.iptc.org/newscodes/digitalsourcetype/)."""
PATTERN = re.compile(b"|".join(re.escape(mark.encode(coding)) for mark in MARKS for coding in ("utf-8", "utf-16-le")), re.IGNORECASE)
SOFTWARE = f"Overtone {__version__}"
"""The software of the mark, also in a field of its own where a container has one."""
OWN = re.compile(rf"{KIND}; (?:model ([^;\0]*); )?made with (Overtone [^;\0]*); {SOURCE_TYPE}".encode())
LONGEST_MODEL = 100


@dataclass(frozen=True)
class SyntheticMark:
    """The mark in the tags of a file."""

    model: str = ""
    """Name of the model; empty: unknown."""
    software: str = SOFTWARE

    @property
    def comment(self) -> str:
        """The comment of a file, in which `read_synthetic_mark` finds all of it. `;` and control characters of the model's name are
        replaced."""
        name = "".join(character if character.isprintable() and character != ";" else "_" for character in self.model)[:LONGEST_MODEL]
        return f"{KIND}; {f'model {name}; ' if name else ''}made with {self.software}; {SOURCE_TYPE}"


def find_synthetic_mark(path: Path) -> str:
    """Return the mark of synthetic speech in a file; empty if there is none, or if the file cannot be read."""
    try:
        ends = _read_ends(path)
    except OSError:
        return ""
    found = next((match for end in ends if (match := PATTERN.search(end))), None)
    return found.group().replace(b"\0", b"").decode() if found else ""


def read_synthetic_mark(path: Path) -> SyntheticMark | None:
    """Return the mark that this package wrote into a file; None if there is none. Raises OSError for a file that cannot be read."""
    found = next((match for end in _read_ends(path) if (match := OWN.search(end))), None)
    if found is None:
        return None
    model, software = ((part or b"").decode("utf-8", "replace") for part in found.groups())
    return SyntheticMark(model, software)


def make_comment_of_copy(path: Path) -> str:
    """Return the comment that marks a copy or a part of a file as synthetic too; empty if the file has no mark."""
    mark = find_synthetic_mark(path)
    own = read_synthetic_mark(path) if mark else None
    return mark if own is None else own.comment


def _read_ends(path: Path) -> list[bytes]:
    """The first and the last bytes of a file, which do not overlap."""
    with input_files.open_file(path) as file:
        ends = [file.read(SEARCHED_BYTES)]
        size = file.seek(0, 2)
        file.seek(max(SEARCHED_BYTES, size - SEARCHED_BYTES))
        ends.append(file.read())
    return ends
