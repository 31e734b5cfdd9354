"""Timed transcripts as JSON: our own, and those of Whisper, faster-whisper, whisperX, whisper.cpp and transformers; Whisper's TSV."""

from __future__ import annotations

import math
from statistics import median
from typing import TypeGuard

from pydantic import JsonValue

from overtone.data_prep.recordings.timed_cues import Cue, ParsedCues
from overtone.finetune.errors import UserError
from overtone.finetune.storage import strict_json

EXPECTED = "expected [{start, end, text}, …] in seconds, or the JSON of Whisper, whisperX, whisper.cpp or a transformers pipeline"
MILLISECONDS = 1000
MOST_SECONDS_PER_LETTER = 2.0
"""Maximum seconds per letter of the usual cue; whole numbers that make it longer are milliseconds."""
LONGEST = 1e9
"""Largest time in seconds or milliseconds; no recording is longer."""


def parse_json(content: str, name: str) -> ParsedCues:
    """Parse `[{start, end, text}, …]`, `{segments: […]}` of Whisper and whisperX, `{transcription: [{offsets, text}, …]}` of whisper.cpp,
    `{chunks: [{timestamp, text}, …]}` of transformers, or `{utterances: […]}` of AssemblyAI. Entries without times or text are skipped.
    Raises `UserError` with `name`."""
    try:
        value = strict_json.loads(content)
    except strict_json.JsonSyntaxError as error:
        raise UserError(f"{name}:{error.line}: not JSON ({error.problem}); {EXPECTED}") from error
    except ValueError as error:
        raise UserError(f"{name}: unusable JSON ({strict_json.one_line(error)}); {EXPECTED}") from error
    entries = value
    if isinstance(value, dict):
        entries = next(
            (value[key] for key in ("segments", "transcription", "chunks", "utterances") if isinstance(value.get(key), list)), None
        )
    if not isinstance(entries, list):
        keys = f"an object with the keys {', '.join(map(repr, list(value)[:5]))}" if isinstance(value, dict) else type(value).__name__
        raise UserError(f"{name}: top level: found {keys or 'an empty object'}; {EXPECTED}")
    cues, skipped = [], []
    for index, entry in enumerate(entries):
        problem = _find_problem(entry)
        if problem:
            skipped.append(f"{name}: {index}{problem}")
        elif isinstance(entry["text"], str) and entry["text"].strip():
            start, end = (float(value) if _is_time(value) else None for value in _read_times(entry))
            assert start is not None
            speaker = entry.get("speaker")
            named = str(speaker).strip() if isinstance(speaker, str | int) and not isinstance(speaker, bool) else ""
            cues.append(Cue(f"{name}: {index}", start, start if end is None else end, entry["text"].strip(), named or None))
    if not entries:
        raise UserError(f"{name} has no utterances; add some or remove the file")
    if _are_milliseconds(cues):
        cues = [cue._replace(start=cue.start / MILLISECONDS, end=cue.end / MILLISECONDS) for cue in cues]
        return ParsedCues(tuple(cues), tuple(skipped), notes=("its times are milliseconds",))
    return ParsedCues(tuple(cues), tuple(skipped))


def _are_milliseconds(cues: list[Cue]) -> bool:
    """Return whether the times, read as seconds, are whole and far too long for the texts."""
    whole = all(cue.start.is_integer() and cue.end.is_integer() for cue in cues)
    return bool(cues) and whole and median((cue.end - cue.start) / len(cue.text) for cue in cues) > MOST_SECONDS_PER_LETTER


def parse_tsv(content: str, name: str) -> ParsedCues:
    """Parse the TSV output of Whisper's command line: a header, then start and end in milliseconds and the text. Raises `UserError` with
    file and line for another header; lines without usable times are skipped."""
    lines = [(number, line.split("\t")) for number, line in enumerate(content.split("\n"), start=1) if line.strip()]
    if not lines or [field.strip().lower() for field in lines[0][1]] != ["start", "end", "text"]:
        raise UserError(f"{name}:1: expected the columns start, end and text, separated by tabs, as Whisper writes them")
    cues, skipped = [], []
    for number, fields in lines[1:]:
        place = f"{name}:{number}"
        if len(fields) != 3 or not fields[0].strip().isdecimal() or not fields[1].strip().isdecimal():
            skipped.append(f"{place}: expected start and end in milliseconds and a text, found {' '.join(fields)[:60]!r}")
        elif fields[2].strip():
            cues.append(Cue(place, int(fields[0]) / MILLISECONDS, int(fields[1]) / MILLISECONDS, fields[2].strip()))
    return ParsedCues(tuple(cues), tuple(skipped))


def _find_problem(entry: JsonValue) -> str:
    """Return the problem of an entry, as a text that follows its index; empty if it can be used."""
    if not isinstance(entry, dict):
        return f": expected an object, found {type(entry).__name__}"
    if not isinstance(entry.get("text"), str):
        return f".text: expected a text, found {entry.get('text')!r:.40}"
    start, end = _read_times(entry)
    if not _is_time(start):
        return f".start: expected seconds from 0, found {start!r:.40}"
    return "" if end is None or _is_time(end) else f".end: expected seconds from 0, found {end!r:.40}"


def _read_times(entry: dict[str, JsonValue]) -> tuple[JsonValue, JsonValue]:
    """Return (start, end) of an entry as its format has them, in seconds; whatever else is there if they are no numbers."""
    offsets, timestamp = entry.get("offsets"), entry.get("timestamp")
    if "start" not in entry and isinstance(offsets, dict):  # whisper.cpp
        start, end = (value / MILLISECONDS if _is_time(value) else value for value in (offsets.get("from"), offsets.get("to", math.nan)))
        return start, end
    if "start" not in entry and isinstance(timestamp, list) and len(timestamp) == 2:  # transformers; the last end may be open
        return timestamp[0], timestamp[1]
    return entry.get("start"), entry.get("end", math.nan)


def _is_time(value: JsonValue) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST
