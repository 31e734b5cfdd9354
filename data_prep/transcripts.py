"""The user's own transcripts, beside the recordings.

Three forms, looked for in this order beside `talk.wav`:
  talk.transcript.json (or talk.json)   [{"start": 0.4, "end": 3.1, "text": "…"}, …], rough times in seconds
  talk.txt                              the text of a short recording: one clip
  metadata.csv                          lines `talk|text` (or `talk|text|normalised text`, of which the last is used), as in LJSpeech;
                                        in the folder of the recording or, where that is called `wavs`, in the one above
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from data_prep.audio import MASTER_RATE
from data_prep.segment import Unit
from finetune.errors import UserError

UNSPACED = ("chinese", "japanese")
FORMS = "<name>.transcript.json with [{start, end, text}, …], <name>.txt for a short recording, or metadata.csv with id|text"


class Utterance(BaseModel):
    """One entry of a transcript with times. They need not be exact: they choose the pause to cut in, never the place inside it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    start: float = Field(ge=0, allow_inf_nan=False)
    end: float = Field(ge=0, allow_inf_nan=False)
    text: str = Field(min_length=1)


class Transcript(BaseModel):
    """What is said in one recording: utterances with times, or one text for all of it."""

    model_config = ConfigDict(frozen=True)

    utterances: tuple[Utterance, ...] = ()
    text: str = ""

    def units(self, length: int, language: str) -> list[Unit]:
        """As units of a master of `length` samples."""
        if self.text:
            return [Unit(text=self.text, start=0, stop=length)]
        space = "" if language in UNSPACED else " "
        return [
            Unit(text=space + said.text.strip(), start=round(said.start * MASTER_RATE), stop=round(said.end * MASTER_RATE))
            for said in self.utterances
        ]


def find(recording: Path) -> Transcript | None:
    """The transcript of a recording, or None. Raises `UserError` that names file and entry if it cannot be understood."""
    for name in (f"{recording.stem}.transcript.json", f"{recording.stem}.json"):
        if (path := recording.with_name(name)).is_file():
            return _timed(path)
    if (path := recording.with_name(f"{recording.stem}.txt")).is_file():
        return _plain(path)
    for folder in [recording.parent] + [recording.parent.parent] * (recording.parent.name == "wavs"):
        if (path := folder / "metadata.csv").is_file() and (text := _table(path).get(recording.stem)):
            return Transcript(text=text)
    return None


def _timed(path: Path) -> Transcript:
    try:
        utterances = TypeAdapter(tuple[Utterance, ...]).validate_python(json.loads(_text(path)))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON ({error.msg}); expected [{{start, end, text}}, …]") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "top level"
        raise UserError(f"{path}: {where}: {first['msg']}; expected [{{start, end, text}}, …] with times in seconds") from error
    if not utterances:
        raise UserError(f"{path} holds no utterance; fill it or remove it")
    for index, (said, following) in enumerate(zip(utterances, [*utterances[1:], None], strict=True)):
        if said.end <= said.start:
            raise UserError(f"{path}: {index}: end {said.end} is not after start {said.start}")
        if following and following.start < said.start:
            raise UserError(f"{path}: {index + 1}: starts at {following.start}, before the utterance above it; sort them by start")
    return Transcript(utterances=utterances)


def _plain(path: Path) -> Transcript:
    text = " ".join(_text(path).split())
    if not text:
        raise UserError(f"{path} is empty; write the text of the recording into it or remove it")
    return Transcript(text=text)


@functools.cache
def _table(path: Path) -> dict[str, str]:
    """id → text of a metadata.csv; fields are not quoted."""
    rows: dict[str, str] = {}
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        name, *fields = line.split("|")
        if not fields or len(fields) > 2 or not fields[-1].strip():
            raise UserError(f"{path}:{number}: expected id|text or id|text|normalised text, found {line[:80]!r}")
        if name in rows:
            raise UserError(f"{path}:{number}: the id {name!r} is there twice; remove one of the lines")
        rows[name] = fields[-1].strip()
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
