"""Timed transcripts: validated utterances with start, end and text, from JSON or cues."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from data_prep.recordings.subtitles import Cues
from finetune.errors import UserError
from finetune.storage import strict_json

SHOWN_SPEAKERS = 3


class TimedUtterance(BaseModel):
    """One utterance, times in seconds. Approximate times suffice: they select the pause to cut at, never the position inside it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    start: float = Field(ge=0, allow_inf_nan=False)
    end: float = Field(ge=0, allow_inf_nan=False)
    text: str = Field(min_length=1)
    speaker: str | None = None


def parse_json(content: str, name: str) -> tuple[TimedUtterance, ...]:
    """Parse `[{start, end, text}, …]` or Whisper's JSON output. Raises `UserError` with `name` and the invalid entry."""
    try:
        value = strict_json.loads(content)
        entries = value["segments"] if isinstance(value, dict) and "segments" in value else value  # as Whisper's command line writes them
        utterances = TypeAdapter(tuple[TimedUtterance, ...]).validate_python(entries)
    except strict_json.JsonSyntaxError as error:
        raise UserError(f"{name}:{error.line}: not JSON ({error.problem}); expected [{{start, end, text}}, …]") from error
    except ValidationError as error:  # a ValueError too
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "top level"
        raise UserError(f"{name}: {where}: {first['msg']}; expected [{{start, end, text}}, …] with times in seconds") from error
    except ValueError as error:
        raise UserError(f"{name}: unusable JSON ({strict_json.one_line(error)}); expected [{{start, end, text}}, …]") from error
    return _check_utterances(utterances, [f"{name}: {index}" for index in range(len(utterances))], name)


def parse_tsv(content: str, name: str) -> tuple[TimedUtterance, ...]:
    """Parse the TSV output of Whisper's command line: a header, then start and end in milliseconds and the text. Raises `UserError` with
    file and line."""
    lines = [(number, line.split("\t")) for number, line in enumerate(content.split("\n"), start=1) if line.strip()]
    if not lines or [field.strip().lower() for field in lines[0][1]] != ["start", "end", "text"]:
        raise UserError(f"{name}:1: expected the columns start, end and text, separated by tabs, as Whisper writes them")
    utterances, places = [], []
    for number, fields in lines[1:]:
        if len(fields) != 3 or not fields[0].strip().isdecimal() or not fields[1].strip().isdecimal():
            raise UserError(f"{name}:{number}: expected start and end in milliseconds and a text, found {' '.join(fields)[:80]!r}")
        if fields[2].strip():
            utterances.append(TimedUtterance(start=int(fields[0]) / 1000, end=int(fields[1]) / 1000, text=fields[2].strip()))
            places.append(f"{name}:{number}")
    return _check_utterances(tuple(utterances), places, name)


def convert_cues(cues: Cues, name: str) -> tuple[TimedUtterance, ...]:
    """Convert subtitles or labels. Raises `UserError` with file and line."""
    silent = next((cue for cue in cues.spoken if not cue.text), None)
    if silent:
        raise UserError(f"{name}:{silent.line}: times without text; add the text or remove the line")
    utterances = tuple(TimedUtterance(start=cue.start, end=cue.end, text=cue.text) for cue in cues.spoken)
    return _check_utterances(utterances, [f"{name}:{cue.line}" for cue in cues.spoken], name)


def _check_utterances(utterances: tuple[TimedUtterance, ...], places: list[str], name: str) -> tuple[TimedUtterance, ...]:
    """Check order and speakers. `places`: location of each utterance, for error messages."""
    if not utterances:
        raise UserError(f"{name} has no utterances; add some or remove the file")
    for one, place in zip(utterances, places, strict=True):
        if one.end <= one.start:
            raise UserError(f"{place}: end {one.end} is not after start {one.start}")
    for one, following, place in zip(utterances, utterances[1:], places[1:], strict=False):
        if following.start < one.start:
            raise UserError(f"{place}: starts at {following.start}, before the previous utterance; sort them by start")
    speakers = sorted({one.speaker for one in utterances if one.speaker})
    if len(speakers) > 1:
        raise UserError(f"{name}: several speakers ({', '.join(speakers[:SHOWN_SPEAKERS])}) in one recording; split it by speaker first")
    return utterances
