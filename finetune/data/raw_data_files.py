"""Recognizes what was given as training data and is not yet a file of training rows: a folder, a table, an archive, rows of another form.

Only the beginning of a file is read. Imports no torch: the message with the command to run must not take seconds.
"""

from __future__ import annotations

import codecs
import re
import shlex
import zipfile
from collections.abc import Sequence
from pathlib import Path

from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files, strict_json

HEAD_BYTES = 2**16
SOUND = frozenset({".wav", ".mp3", ".flac", ".ogg", ".opus", ".m4a", ".aac", ".mp4", ".webm"})
SIGNATURES = {
    b"PAR1": "a Parquet table",
    b"\x1f\x8b": "a compressed file",
    b"\x28\xb5\x2f\xfd": "a compressed file",
    b"ARROW1": "an Arrow table",
    codecs.BOM_UTF16_LE: "a text in UTF-16",
    codecs.BOM_UTF16_BE: "a text in UTF-16",
}
TABLES = {".csv": "a table", ".tsv": "a table", ".xlsx": "a spreadsheet", ".xls": "a spreadsheet", ".txt": "a plain text"}
JSON_ARRAY = re.compile(rb"\[\s*[\[{\]\"\d-]")
"""The beginning of a JSON array, but not that of a section such as [project]."""
SHOWN_KEYS = 12


def explain_raw_data(key: str, path: Path, verb: str | None, row_keys: Sequence[frozenset[str]]) -> str | None:
    """Return why `path` cannot be trained on, and the command that makes training data of it; None if it looks like a file of training
    rows.

    `key`: of the config. `verb`: of `data_prep` for the recipe's raw data. `row_keys`: a training row has all keys of one of these sets.
    Raises `UserError` if the file cannot be read.
    """
    if path.is_dir():
        inside = path / ("val.jsonl" if key == "data.val" else "train.jsonl")
        if inside.is_file():
            return f"{key}: {path} is a folder; give its file: --{key} {shlex.quote(str(inside))}"
        return f"{key}: {path} is a folder, and training reads a file of rows. {_suggest_command(path, verb)}"
    what = _recognize_file(path, row_keys)
    return None if what is None else f"{key}: {path} is {what}, and training reads one JSON object per line. {_suggest_command(path, verb)}"


def _suggest_command(path: Path, verb: str | None) -> str:
    """The command that converts the data, or what has to be done before."""
    if path.suffix.lower() == ".xlsx":
        return "Save it as CSV first."
    if zipfile.is_zipfile(path) and not (verb == "text" and _holds_texts(path)):
        return "Unpack it first, and give the folder."
    if verb is None:
        return "The recipe's `read` defines the keys of a row."
    name = path.stem or "mine"
    out = Path("data") / name
    if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
        out = Path(f"{name}-dataset")  # data_prep would read its own output
    command = overtone_command(verb, path, "--out", out)
    return f"Convert it, then give --data.train {shlex.quote(str(out / 'train.jsonl'))}:\n  {command}"


def _holds_texts(path: Path) -> bool:
    """Return whether an archive can be an exported chat of WhatsApp."""
    with zipfile.ZipFile(path) as archive:
        return any(name.lower().endswith(".txt") for name in archive.namelist())


def _recognize_file(path: Path, row_keys: Sequence[frozenset[str]]) -> str | None:
    """Return what the file is; None for rows with the keys of one of the sets, and for what reading the rows explains better."""
    try:
        with input_files.open_file(path) as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({strict_json.one_line(error)})") from None
    if path.suffix.lower() in SOUND:
        return "a recording"
    if zipfile.is_zipfile(path):
        return TABLES.get(path.suffix.lower(), "a zip archive")
    if found := next((what for signature, what in SIGNATURES.items() if head.startswith(signature)), None):
        return found
    if b"\0" in head:
        return "not a text"
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if not start:
        return None
    if JSON_ARRAY.match(start):
        return "one JSON array"
    if not start.startswith(b"{"):
        return TABLES.get(path.suffix.lower(), "not JSON")
    return _recognize_row(start, len(head) == HEAD_BYTES, row_keys)


def _recognize_row(start: bytes, cut: bool, row_keys: Sequence[frozenset[str]]) -> str | None:
    line, end, _ = start.partition(b"\n")
    if not end and cut:
        return None  # the first row is longer than what was read
    try:
        row = strict_json.loads(line)
    except ValueError:
        return "one JSON document over several lines" if line.rstrip().endswith((b"{", b"[", b",")) else None
    if not isinstance(row, dict) or not row_keys or any(keys <= row.keys() for keys in row_keys):
        return None
    keys = ", ".join(f"{key:.40}" for key in list(row)[:SHOWN_KEYS]) or "no key"
    wanted = "; or ".join(" and ".join(sorted(keys)) for keys in row_keys)
    return f"a file of rows of another form (keys: {keys}; a training row has {wanted})"
