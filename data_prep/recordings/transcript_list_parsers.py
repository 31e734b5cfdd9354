"""Lists of recordings and texts without named columns: GPT-SoVITS (`.list`) and LibriSpeech (`.trans.txt`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from overtone.data_prep.recordings.ljspeech_metadata import MetadataLine
from overtone.finetune.errors import UserError

GPT_SOVITS, LIBRISPEECH = ".list", ".trans.txt"
UTTERANCE = re.compile(r"(?P<speaker>\d+)-(?P<chapter>\d+)-\d+")
"""Id of an utterance in LibriSpeech."""


def is_transcript_list(path: Path) -> bool:
    return path.name.lower().endswith((GPT_SOVITS, LIBRISPEECH))


def parse_list(path: Path, content: str) -> Iterator[tuple[str, MetadataLine]]:
    """Yield (path or id of the recording, its line). Raises `UserError` with file and line."""
    parse = _parse_gpt_sovits if path.name.lower().endswith(GPT_SOVITS) else _parse_librispeech
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            yield parse(path, number, line.strip())


def _parse_gpt_sovits(path: Path, number: int, line: str) -> tuple[str, MetadataLine]:
    """Parse a line `path|speaker|language|text`."""
    fields = [field.strip() for field in line.split("|", 3)]
    if len(fields) != 4 or not fields[0] or not fields[3]:
        raise UserError(f"{path}:{number}: expected path|speaker|language|text, found {line[:80]!r}")
    name, speaker, language, text = fields
    return name.replace("\\", "/"), MetadataLine(path, number, text, speaker or None, language or None)


def _parse_librispeech(path: Path, number: int, line: str) -> tuple[str, MetadataLine]:
    """Parse a line `1089-134686-0000 TEXT`; the id begins with the speaker."""
    name, text = (*line.split(maxsplit=1), "")[:2]
    if not text:
        raise UserError(f"{path}:{number}: expected an id and its text, found {line[:80]!r}")
    known = UTTERANCE.fullmatch(name)
    return name, MetadataLine(path, number, text, known["speaker"] if known else None)
