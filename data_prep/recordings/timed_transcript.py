"""Timed transcripts: validated utterances with start, end and text, from JSON or cues."""

from __future__ import annotations

import json
from typing import Any

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
        said = TypeAdapter(tuple[TimedUtterance, ...]).validate_python(_find_entries(strict_json.loads(content)))
    except json.JSONDecodeError as error:
        raise UserError(f"{name}:{error.lineno}: not JSON ({error.msg}); expected [{{start, end, text}}, …]") from error
    except ValidationError as error:  # a ValueError too
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "top level"
        raise UserError(f"{name}: {where}: {first['msg']}; expected [{{start, end, text}}, …] with times in seconds") from error
    except ValueError as error:
        raise UserError(f"{name}: unusable JSON ({strict_json.one_line(error)}); expected [{{start, end, text}}, …]") from error
    return _check_utterances(said, [f"{name}: {index}" for index in range(len(said))], name)


def _find_entries(value: Any) -> Any:
    """The list of entries; Whisper's command line stores it under `segments`."""
    return value["segments"] if isinstance(value, dict) and "segments" in value else value


def convert_cues(cues: Cues, name: str) -> tuple[TimedUtterance, ...]:
    """Convert subtitles or labels. Raises `UserError` with file and line."""
    silent = next((cue for cue in cues.said if not cue.text), None)
    if silent:
        raise UserError(f"{name}:{silent.line}: times without text; add the text or remove the line")
    said = tuple(TimedUtterance(start=cue.start, end=cue.end, text=cue.text) for cue in cues.said)
    return _check_utterances(said, [f"{name}:{cue.line}" for cue in cues.said], name)


def _check_utterances(said: tuple[TimedUtterance, ...], places: list[str], name: str) -> tuple[TimedUtterance, ...]:
    """Check order and speakers. `places`: location of each utterance, for error messages."""
    if not said:
        raise UserError(f"{name} has no utterances; add some or remove the file")
    for one, place in zip(said, places, strict=True):
        if one.end <= one.start:
            raise UserError(f"{place}: end {one.end} is not after start {one.start}")
    for one, following, place in zip(said, said[1:], places[1:], strict=False):
        if following.start < one.start:
            raise UserError(f"{place}: starts at {following.start}, before the previous utterance; sort them by start")
    speakers = sorted({one.speaker for one in said if one.speaker})
    if len(speakers) > 1:
        raise UserError(f"{name}: several speakers ({', '.join(speakers[:SHOWN_SPEAKERS])}) in one recording; split it by speaker first")
    return said
