"""The JSONL files: one clip, or one rejected stretch, a line. Paths are relative to the file.

Rows are a superset of what the official Qwen3-TTS script reads ({audio, text, ref_audio[, language]}), and its files are read as they are.
Keys that are not ours stay with their row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data_prep.score import Quality
from finetune import files, strict_json
from finetune.errors import UserError

LANGUAGES = {
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fr": "french",
    "it": "italian",
    "ja": "japanese",
    "ko": "korean",
    "pt": "portuguese",
    "ru": "russian",
    "zh": "chinese",
}
"""The languages of Qwen3-TTS; rows hold the names."""
AUTO = "auto"
"""The language of a row that nobody stated."""

TOGETHER = "clips from elsewhere are brought together by: python -m data_prep export {} --root FOLDER --as voice --to NEW"

TRAIN, VAL, REJECTS, SUMMARY, RUN = "train.jsonl", "val.jsonl", "rejects.jsonl", "summary.json", "run.json"


class Row(BaseModel):
    """One clip."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str | None = None
    audio: str = Field(min_length=1)
    """Path of a mono clip, 24 kHz if it was made here."""
    text: str = Field(min_length=1)
    speaker: str | None = None
    language: str = AUTO
    """Lower-case English name, or `auto`."""
    duration: float | None = None
    """Seconds."""
    ref_audio: str | None = None
    """Path of another clip of the same speaker."""
    quality: Quality | None = None
    """Of the sound as it was recorded."""
    gain_db: float | None = None
    """By which the clip is louder than it was recorded: one for each recording."""
    source: str | None = None
    """The recording, relative to the folder of recordings."""
    start: float | None = None
    """Seconds in the source."""
    end: float | None = None
    split: Literal["train", "val"] | None = None
    asr: dict[str, str] | None = None
    """Name and scope of a Whisper that is no general one: the demo's."""
    audio_codes: list[list[int]] | None = None
    """[T][16] at 12.5 Hz."""


class Reject(BaseModel):
    """A recording, a stretch of one, or a clip that is not used, and why."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str | None = None
    """Of a clip: what a person's decisions name."""
    source: str
    start: float = 0.0
    """Seconds."""
    end: float = 0.0
    stage: Literal["recording", "clip", "codes"]
    reasons: list[str] = Field(min_length=1)
    detail: str | None = None
    text: str | None = None
    speaker: str | None = None
    language: str | None = None
    quality: Quality | None = None
    gain_db: float | None = None
    audio: str | None = None
    """Of a clip that has a text: it can be listened to."""


def language_name(given: str) -> str:
    """The name that rows hold: `en`, `English` → `english`. Other languages pass by their full name."""
    name = given.strip().lower()
    if name in LANGUAGES:
        return LANGUAGES[name]
    if name == AUTO or name in LANGUAGES.values() or (len(name) > 3 and name.isalpha()):
        return name
    known = ", ".join(f"{code} ({full})" for code, full in LANGUAGES.items())
    raise UserError(f"--language {given}: unknown; give one of {known}, or another language by its full English name")


def speaker_name(given: str) -> str:
    """Lower-case, as the inference code looks names up."""
    name = " ".join(given.split()).lower()
    if not name:
        raise UserError(f"--speaker {given!r}: a speaker needs a name")
    return name


def read_rows(path: Path, speaker: str | None = None) -> Iterator[Row]:
    """The rows of a manifest, one at a time. `speaker`: for rows that name none.

    Raises `UserError` with file and line for what is not JSON, not a row, or a clip outside of the manifest's folder.
    """
    for number, value in read_lines(path):
        row = _row(path, number, value)
        if row.speaker is None and speaker is None:
            raise UserError(f'{path}:{number}: the row names no speaker; add "speaker" to it, or give --speaker NAME for all such rows')
        yield row if row.speaker else row.model_copy(update={"speaker": speaker})


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line that is not blank."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; make it with: python -m data_prep voice RECORDINGS --out {path.parent}")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, _object(path, number, line)


def clip_path(manifest: Path, row: Row) -> Path:
    """The real path of a row's clip. Raises `UserError` if it lies outside of the manifest's folder."""
    return files.resolve_under(manifest.parent, row.audio)


def write(path: Path, entries: Iterable[Row | Reject]) -> int:
    """Replace a manifest in one step; returns the number of lines."""
    return files.write_jsonl(path, (entry.model_dump(exclude_none=True) for entry in entries))


def write_unless_same(path: Path, rows: list[Row]) -> None:
    """Replace a manifest, unless it holds just these rows already: their codes, which cost time, would be lost."""
    plain = [row.model_dump(mode="json", exclude_none=True) for row in rows]
    if not path.is_file() or plain != [_without_codes(value) for _, value in read_lines(path)]:
        files.write_jsonl(path, plain)


def _without_codes(value: dict[str, Any]) -> dict[str, Any]:
    return {key: field for key, field in value.items() if key != "audio_codes"}


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = strict_json.loads(line)
    except ValueError as error:
        raise UserError(
            f"{path}:{number}: not a JSON object in UTF-8 ({strict_json.one_line(error)}); correct or remove the line"
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{path}:{number}: a JSON object is expected, found {type(value).__name__}; correct or remove the line")
    return value


def _row(path: Path, number: int, value: dict[str, Any]) -> Row:
    try:
        row = Row.model_validate(value)
        files.resolve_under(path.parent, row.audio)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path}:{number}: {'.'.join(map(str, first['loc']))}: {first['msg']}; correct or remove the line") from error
    except UserError as error:
        raise UserError(f"{path}:{number}: audio: {error}; {TOGETHER.format(path)}") from error
    return row
