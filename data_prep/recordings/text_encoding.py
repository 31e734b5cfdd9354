"""Text files of any common encoding: UTF-8, UTF-16 with a byte order mark, and Western European single bytes, which are reported."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import NamedTuple

from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files

MARKED = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
MOST_ACCENTED = 0.35
"""Maximum share of letters outside ASCII in text that is taken for Western European. French, with the most accents among these languages,
has 4 %; other alphabets and Chinese, read byte by byte, have more than half."""
WINDOWS_ONLY = re.compile(rb"[\x80-\x9f]")
"""Bytes that are control characters in Latin-1, and quotation marks, dashes and the euro sign in Windows-1252."""


LARGEST = 2**28
"""Bytes of a text, 256 MiB: a table with the transcripts of a million clips has about 150 MB."""


class DecodedText(NamedTuple):
    """Text with normal line breaks, and a note for the user on how it was read."""

    text: str
    note: str
    """Note on the encoding; empty for Unicode."""


def read_text(path: Path) -> DecodedText:
    """Return the text of a file. Raises `UserError` for bytes that are neither Unicode nor plausible Western European text, and for zero
    bytes."""
    try:
        raw = input_files.read_bytes(path, LARGEST)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); correct its permissions or remove it") from error
    encoding = _find_marked_encoding(raw)
    try:
        return DecodedText(_require_no_zero_bytes(path, _unify_line_breaks(raw.decode(encoding))), "")
    except UnicodeDecodeError as error:
        if encoding != "utf-8-sig":
            raise UserError(f"{path} begins like {encoding.upper()}, but byte {error.start} does not fit; save it as UTF-8") from error
        first = error
    try:
        name, text = ("Windows-1252", raw.decode("cp1252")) if WINDOWS_ONLY.search(raw) else ("Latin-1", raw.decode("latin-1"))
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 (byte {first.start}); save it as UTF-8") from first
    letters = [letter for letter in text if letter.isalpha()]
    accented = [letter for letter in letters if not letter.isascii()]
    if "\0" in text or not accented or len(accented) > MOST_ACCENTED * len(letters):
        raise UserError(f"{path} is not UTF-8 (byte {first.start}), nor text of a Western European language; save it as UTF-8")
    example = next(word for word in re.findall(r"\w+", text) if not word.isascii())
    return DecodedText(_unify_line_breaks(text), f"{path}: not UTF-8, read as {name}; check its accents, for example {example!r}")


def _require_no_zero_bytes(path: Path, text: str) -> str:
    """Return the text. Raises `UserError` for text in UTF-16 without its mark, and for files that hold no text."""
    at = text.find("\0")
    if at >= 0:
        raise UserError(f"{path}:{text.count(chr(10), 0, at) + 1}: a zero byte, which no text has; save it as UTF-8 text")
    return text


def decode_head(raw: bytes) -> str:
    """Return the first bytes of a file as text with normal line breaks, without the checks of `read_text`."""
    return _unify_line_breaks(raw.decode(_find_marked_encoding(raw), "replace"))


def _find_marked_encoding(raw: bytes) -> str:
    return next((name for mark, name in MARKED if raw.startswith(mark)), "utf-8-sig")


def _unify_line_breaks(text: str) -> str:
    return text.replace("\r\r\n", "\n").replace("\r\n", "\n").replace("\r", "\n")  # `\r\r\n`: converted to Windows twice
