"""Transcripts with times: what is said from when to when in one recording, checked."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from data_prep.cues import Cues
from finetune import strict_json
from finetune.errors import UserError

SHOWN_SPEAKERS = 3


class Utterance(BaseModel):
    """One entry of a transcript with times. They need not be exact: they choose the pause to cut in, never the place inside it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    start: float = Field(ge=0, allow_inf_nan=False)
    end: float = Field(ge=0, allow_inf_nan=False)
    text: str = Field(min_length=1)
    speaker: str | None = None


def of_json(content: str, name: str) -> tuple[Utterance, ...]:
    """From `[{start, end, text}, …]`, or what Whisper writes. Raises `UserError` that begins with `name` and says which entry is wrong."""
    try:
        said = TypeAdapter(tuple[Utterance, ...]).validate_python(_entries(strict_json.loads(content)))
    except json.JSONDecodeError as error:
        raise UserError(f"{name}:{error.lineno}: not JSON ({error.msg}); expected [{{start, end, text}}, …]") from error
    except ValidationError as error:  # a ValueError too
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "top level"
        raise UserError(f"{name}: {where}: {first['msg']}; expected [{{start, end, text}}, …] with times in seconds") from error
    except ValueError as error:
        raise UserError(f"{name}: not JSON that can be used ({strict_json.one_line(error)}); expected [{{start, end, text}}, …]") from error
    return _checked(said, [f"{name}: {index}" for index in range(len(said))], name)


def _entries(value: Any) -> Any:
    """Whisper's command line writes its list as `segments`."""
    return value["segments"] if isinstance(value, dict) and "segments" in value else value


def of_cues(cues: Cues, name: str) -> tuple[Utterance, ...]:
    """From subtitles or labels. Raises `UserError` with file and line."""
    silent = next((cue for cue in cues.said if not cue.text), None)
    if silent:
        raise UserError(f"{name}:{silent.line}: times without a text; write it, or remove the line")
    said = tuple(Utterance(start=cue.start, end=cue.end, text=cue.text) for cue in cues.said)
    return _checked(said, [f"{name}:{cue.line}" for cue in cues.said], name)


def _checked(said: tuple[Utterance, ...], places: list[str], name: str) -> tuple[Utterance, ...]:
    """`places`: of each utterance, for what is said about it."""
    if not said:
        raise UserError(f"{name} holds no utterance; fill it or remove it")
    for one, place in zip(said, places, strict=True):
        if one.end <= one.start:
            raise UserError(f"{place}: end {one.end} is not after start {one.start}")
    for one, following, place in zip(said, said[1:], places[1:], strict=False):
        if following.start < one.start:
            raise UserError(f"{place}: starts at {following.start}, before the utterance above it; sort them by start")
    speakers = sorted({one.speaker for one in said if one.speaker})
    if len(speakers) > 1:
        raise UserError(f"{name}: several speakers ({', '.join(speakers[:SHOWN_SPEAKERS])}) in one recording; divide it by speaker first")
    return said
