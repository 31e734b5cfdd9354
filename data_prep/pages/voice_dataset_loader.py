"""Load a dataset folder (summary, kept clips, rejected clips) for the report and the review page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from overtone.data_prep import manifest
from overtone.data_prep.dataset.duration_accounting import Summary
from overtone.data_prep.manifest import AUTO, ManifestRow, Quality, Reject
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files, strict_json
from overtone.finetune.storage.referenced_files import find_file


@dataclass(frozen=True)
class ReportClip:
    """A kept clip, or a rejected clip, stretch or recording."""

    id: str
    """Clip id; empty: no audio."""
    audio: str
    """Path relative to the dataset folder and inside it. Empty: no file."""
    text: str
    speaker: str
    language: str
    source: str
    start: float
    """Seconds in the source."""
    seconds: float
    stage: str
    """The stage that rejected it (recording, clip, codes), or the split of a kept clip (train, val)."""
    reasons: tuple[str, ...] = ()
    """Rejection reasons; empty: kept."""
    detail: str = ""
    quality: Quality | None = None


@dataclass(frozen=True)
class Dataset:
    """A dataset folder of `overtone voice`."""

    folder: Path
    summary: Summary
    kept: list[ReportClip]
    rejected: list[ReportClip]


def read_dataset(folder: Path) -> Dataset:
    """Load a dataset. Raises `UserError` with file and line for missing or invalid data, or a path outside the folder."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; create a dataset with: {overtone_command('voice', 'RECORDINGS', '--out', folder)}")
    summary = _read_summary(folder / manifest.SUMMARY)
    kept = [_convert_row(row) for name in (manifest.TRAIN, manifest.VAL) for row in _read_rows(folder / name)]
    return Dataset(folder, summary, kept, list(_read_rejects(folder / manifest.REJECTS)))


def resolve_clip(dataset: Dataset, clip: ReportClip) -> Path:
    """Return the real path of a clip's audio file. Raises `UserError` if it is outside the dataset."""
    return find_file(dataset.folder, clip.audio)


def _read_summary(path: Path) -> Summary:
    try:
        return Summary.model_validate(strict_json.loads(input_files.read_bytes(path)))
    except FileNotFoundError:
        command = overtone_command("voice", "RECORDINGS", "--out", path.parent)
        raise UserError(
            f"{path} does not exist: the folder is not a dataset, or its run is not complete; create it with: {command}"
        ) from None
    except (ValueError, ValidationError) as error:
        first = strict_json.first_line(error)
        raise UserError(f"{path}: not a summary of overtone voice ({first}); run overtone voice again") from error


def _read_rows(path: Path) -> Iterator[ManifestRow]:
    """Yield the rows without `audio_codes`, which are most of the file and not needed here."""
    for row in manifest.read_rows(path, speaker=""):
        yield row.model_copy(update={"audio_codes": None})


def _read_rejects(path: Path) -> Iterator[ReportClip]:
    for number, value in manifest.read_lines(path):
        try:
            reject = Reject.model_validate(value)
            if reject.audio:
                files.resolve_under(path.parent, reject.audio)
        except (ValidationError, UserError) as error:
            raise UserError(f"{path}:{number}: not a row of rejects.jsonl ({error}); run overtone voice again") from error
        yield _convert_reject(reject)


def _convert_row(row: ManifestRow) -> ReportClip:
    return ReportClip(
        id=row.id or "",
        audio=row.audio,
        text=row.text,
        speaker=row.speaker or "",
        language=row.language,
        source=row.source or row.audio,
        start=row.start or 0.0,
        seconds=row.duration or 0.0,
        stage=row.split or "train",
        quality=row.quality,
    )


def _convert_reject(reject: Reject) -> ReportClip:
    return ReportClip(
        id=reject.id or "",
        audio=reject.audio or "",
        text=reject.text or "",
        speaker=reject.speaker or "",
        language=reject.language or AUTO,
        source=reject.source,
        start=reject.start,
        seconds=reject.end - reject.start,
        stage=reject.stage,
        reasons=tuple(reject.reasons),
        detail=reject.detail or "",
        quality=reject.quality,
    )
