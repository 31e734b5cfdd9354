"""Line reader for voice manifests (JSONL) of this package or another program: yields each line as a row or as a problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue, ValidationError

from overtone.data_prep.manifest import REJECTS, TRAIN, VAL, ManifestRow
from overtone.data_prep.recordings.ljspeech_metadata import NAMES
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files, strict_json

DATASET = f"folder with {TRAIN} and optionally {VAL}; or a JSONL file of {{audio, text, …}}"
ROOT = "folder that contains all clips; relative paths start here (default: the folder of the manifest)"
"""Help texts of the arguments of verbs that read such files."""
TEXT_KEYS = ("messages", "conversations", "prompt", "instruction")


@dataclass(frozen=True)
class ManifestLine:
    """One line of a manifest: a valid row, or kind and detail of its problem."""

    manifest: Path
    number: int
    row: ManifestRow | None
    kind: str = ""
    detail: str = ""

    @property
    def place(self) -> str:
        return f"{self.manifest.name}:{self.number}"


def find_manifests(given: Path, verb_of_runs: str | None = None) -> list[Path]:
    """Return the manifest files: train.jsonl and, if present, val.jsonl of a folder; or the given file. Raises `UserError`.

    `verb_of_runs`: what the error suggests if the folder is that of a run.
    """
    if given.is_file():
        return [given]
    found = [path for name in (TRAIN, VAL) if (path := given / name).is_file()]
    if found:
        return found
    if not given.is_dir():
        raise UserError(f"{given} does not exist; create it with: {overtone_command('voice', 'RECORDINGS', '--out', given)}")
    if verb_of_runs is not None and (given / "checkpoints").is_dir():
        raise UserError(f"{given}: a run, not a dataset; runs are read by: {overtone_command(verb_of_runs, given)}")
    raise UserError(f"{given}: no {TRAIN} in it; {_suggest_input(given)}")


def _suggest_input(folder: Path) -> str:
    others = sorted(path.name for path in folder.glob("*.jsonl") if path.name != REJECTS)
    if others:
        return f"it holds {', '.join(others)}: give one of these"
    if any((folder / name).is_file() for name in NAMES):
        return f"its {NAMES[0]} is read by: {overtone_command('voice', folder, '--transcripts', '--out', 'FOLDER')}"
    return "give a dataset folder, or a JSONL file of {audio, text, …}"


def read_manifest_lines(manifest: Path) -> Iterator[ManifestLine]:
    """Yield every non-blank line. Raises `UserError` for chat rows, which the verb `text` reads."""
    for number, line in enumerate(input_files.read_lines(manifest), start=1):
        if line.strip():
            yield _parse_line(manifest, number, line)


def _parse_line(manifest: Path, number: int, line: bytes) -> ManifestLine:
    try:
        value = strict_json.loads(line)
    except ValueError as error:
        return ManifestLine(manifest, number, None, "not_json", strict_json.one_line(error))
    if not isinstance(value, dict):
        return ManifestLine(manifest, number, None, "not_json", f"expected an object, found {type(value).__name__}")
    if "audio" not in value and any(key in value for key in TEXT_KEYS):
        raise UserError(
            f"{manifest}:{number}: a chat row, not a speech row; check and prepare such files with: "
            f"{overtone_command('text', manifest, '--out', 'FOLDER')}"
        )
    return _parse_row(manifest, number, value)


def _parse_row(manifest: Path, number: int, value: dict[str, JsonValue]) -> ManifestLine:
    try:
        row = ManifestRow.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        return ManifestLine(manifest, number, None, "bad_row", f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    if not row.text.strip():
        return ManifestLine(manifest, number, None, "bad_row", "text: only spaces")
    return ManifestLine(manifest, number, row)
