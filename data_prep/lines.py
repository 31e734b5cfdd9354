"""The lines of a voice dataset, ours or not: which files hold them, and what stands in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data_prep.manifest import REJECTS, TRAIN, VAL, Row
from data_prep.table import NAMES
from finetune import strict_json
from finetune.errors import UserError

DATASET = f"folder with {TRAIN}, and {VAL} if there is one; or a JSONL file of {{audio, text, …}}"
ROOT = "folder in which all clips lie, and where relative paths begin (default: the file's)"
"""What verbs that read such files say of their arguments."""
TEXT_KEYS = ("messages", "conversations", "prompt", "instruction")


@dataclass(frozen=True)
class Line:
    """One line of a manifest: a row, or what is wrong with it."""

    manifest: Path
    number: int
    row: Row | None
    kind: str = ""
    detail: str = ""

    @property
    def place(self) -> str:
        return f"{self.manifest.name}:{self.number}"


def manifests_of(given: Path) -> list[Path]:
    """The files with rows: of a folder train.jsonl and, if there is one, val.jsonl; a file is itself. Raises `UserError`."""
    if given.is_file():
        return [given]
    found = [path for name in (TRAIN, VAL) if (path := given / name).is_file()]
    if found:
        return found
    if not given.is_dir():
        raise UserError(f"{given} does not exist; make it with: python -m data_prep voice RECORDINGS --out {given}")
    raise UserError(f"{given}: no {TRAIN} in it; {_hint(given)}")


def _hint(folder: Path) -> str:
    others = sorted(path.name for path in folder.glob("*.jsonl") if path.name != REJECTS)
    if others:
        return f"it holds {', '.join(others)}: give one of these"
    if any((folder / name).is_file() for name in NAMES):
        return f"its {NAMES[0]} is read by: python -m data_prep voice {folder} --transcripts --out FOLDER"
    return "give a dataset's folder, or a file of rows {audio, text, …}"


def lines_of(manifest: Path) -> Iterator[Line]:
    """Every line that is not blank. Raises `UserError` if these are rows of text, which another verb reads."""
    with manifest.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _line(manifest, number, line)


def _line(manifest: Path, number: int, line: bytes) -> Line:
    try:
        value = strict_json.loads(line)
    except ValueError as error:
        return Line(manifest, number, None, "not_json", strict_json.one_line(error))
    if not isinstance(value, dict):
        return Line(manifest, number, None, "not_json", f"an object is expected, found {type(value).__name__}")
    if "audio" not in value and any(key in value for key in TEXT_KEYS):
        raise UserError(
            f"{manifest}:{number}: a row of text, not of speech; such files are checked and prepared with: "
            f"python -m data_prep text {manifest} --out FOLDER"
        )
    return _row(manifest, number, value)


def _row(manifest: Path, number: int, value: dict[str, Any]) -> Line:
    try:
        row = Row.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        return Line(manifest, number, None, "bad_row", f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    if not row.text.strip():
        return Line(manifest, number, None, "bad_row", "text: there are only spaces in it")
    return Line(manifest, number, row)
