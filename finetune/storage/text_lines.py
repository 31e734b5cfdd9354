"""Lines of text files. A line ends with a line feed, or with a carriage return and a line feed, and with nothing else.

`str.splitlines` and text mode end lines at further characters (form feed, U+0085, U+2028, a carriage return alone), which can be inside a
JSON text or a sentence.
"""

from __future__ import annotations

from pathlib import Path

from overtone.finetune.storage import input_files


def split_lines(text: str) -> list[str]:
    """The lines of a text, without their ends."""
    *whole, last = text.split("\n")
    return [line.removesuffix("\r") for line in (*whole, *([last] if last else []))]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, without a byte order mark. Raises `OSError` and `UnicodeDecodeError`."""
    return split_lines(input_files.read_argument(path).decode("utf-8-sig"))
