"""Texts without questions and answers, for continued pretraining: reads documents, and splits long ones into pieces without losing a
character."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from overtone.data_prep.chats.chat_file_search import ChatSource, FoundRow
from overtone.data_prep.chats.chat_messages import ChatRow
from overtone.data_prep.chats.conversation_checks import check_storable
from overtone.data_prep.chats.conversation_formats import ShapeError, format_keys
from overtone.data_prep.chats.preference_conversion import ConvertedRow
from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files

RAW = "raw"
"""Value of the rows' kind, beside those of `preference_conversion.CONVERTERS`."""
PIECE_CHARACTERS = 4000
"""So many characters are about 1,000 tokens of English and up to 4,000 of Chinese, which is `train.micro_tokens` of llm_sft."""
FEWEST_CHARACTERS = 100
LARGEST_DOCUMENT = 2**30
"""Bytes of a text file, 1 GiB."""
BREAKS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"[.!?…]['\"”’)\]]*\s|[。！？]"), re.compile(r"\s"))
"""A piece may end after these, best first: paragraphs, lines, sentences, words."""


@dataclass(frozen=True)
class RawTexts:
    """Settings by which documents become rows."""

    column: str = "text"
    """Key of a row that has its text."""
    most: int = PIECE_CHARACTERS
    """Most characters of a piece."""


def read_document(source: ChatSource, column: str) -> Iterator[FoundRow]:
    """Yield the text of a file as one row with this key. Line ends become line feeds. A file that is not UTF-8 is no text, and says why."""
    raw = input_files.read_bytes(source.path, LARGEST_DOCUMENT)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield FoundRow(f"{source.name}:1", None, f"not text in UTF-8 (byte {error.start:,}); save it in UTF-8")
    else:
        yield FoundRow(f"{source.name}:1", {column: text.replace("\r\n", "\n").replace("\r", "\n")})


def split_row(found: FoundRow, texts: RawTexts) -> Iterator[FoundRow]:
    """Yield a row for each piece of its text; all but the last one have `ends` false, since their document continues. A row that was
    written so keeps its own `ends`."""
    text, ends = (found.row or {}).get(texts.column), (found.row or {}).get("ends", True)
    if found.row is None or not isinstance(text, str):
        yield found
        return
    if not isinstance(ends, bool):
        yield FoundRow(found.place, None, f"ends must be true or false, found {ends!r:.40}")
        return
    pieces = split_text(text, texts.most)
    for number, piece in enumerate(pieces, start=1):
        row = {**found.row, texts.column: piece, "ends": ends and number == len(pieces)}
        yield FoundRow(found.place if len(pieces) == 1 else f"{found.place}#{number}", row, left_out=found.left_out if number == 1 else {})


def split_text(text: str, most: int) -> list[str]:
    """Return the pieces of a text, with at most `most` characters each; joined, they are the text. A piece ends after the last paragraph in
    its second half, or else after a line, a sentence or a word there. White space that is left after the last piece belongs to it, and may
    make it longer: alone, it would be no row, and the document would have no end."""
    pieces, start = list[str](), 0
    whole = len(text.rstrip())
    while whole - start > most:
        half, limit = start + most // 2, start + most
        ends = (max((found.end() for found in mark.finditer(text, half, limit)), default=0) for mark in BREAKS)
        end = next(filter(None, ends), limit)
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]


def convert_text(row: ChatRow) -> ConvertedRow:
    """Return the row with `text`, and with `ends`, which is false if its document continues in another row. Raises `ShapeError` for a row
    without a text."""
    text = row.get("text")
    if not isinstance(text, str):
        raise ShapeError(f"no text, so name its column with --columns text=COLUMN; its keys are {format_keys(row)}")
    return ConvertedRow({"text": text, "ends": bool(row.get("ends", True))}, "text", frozenset({"text", "ends"}))


def check_text(row: ChatRow) -> None:
    """Raises `UserError` with the reason why a converted row must not be trained on."""
    check_storable(row)
    if not row["text"].strip():
        raise UserError("its text is empty")
