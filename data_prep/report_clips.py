"""The clips of a dataset folder, kept or not, as the report and the review page look at them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from data_prep import manifest
from data_prep.account import Summary
from data_prep.manifest import AUTO, Reject, Row
from data_prep.score import Quality
from finetune import files, strict_json
from finetune.errors import UserError


@dataclass(frozen=True)
class Clip:
    """One clip, or a stretch or a whole recording that became none."""

    id: str
    """Empty: there is nothing to listen to."""
    audio: str
    """Path relative to the dataset, inside of it. Empty: there is none."""
    text: str
    speaker: str
    language: str
    source: str
    start: float
    """Seconds in the source."""
    seconds: float
    stage: str
    """Where it was rejected: recording, clip, codes; or the split that it is kept in: train, val."""
    reasons: tuple[str, ...] = ()
    """Empty: it is kept."""
    detail: str = ""
    quality: Quality | None = None


@dataclass(frozen=True)
class Dataset:
    """A folder that `data_prep voice` made."""

    folder: Path
    summary: Summary
    kept: list[Clip]
    rejected: list[Clip]


def read(folder: Path) -> Dataset:
    """Raises `UserError` naming file and line for what is missing, broken, or leads outside of the folder."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; make a dataset with: python -m data_prep voice RECORDINGS --out {folder}")
    summary = _summary(folder / manifest.SUMMARY)
    kept = [_kept(row) for name in (manifest.TRAIN, manifest.VAL) for row in _rows(folder / name)]
    return Dataset(folder, summary, kept, list(_rejected(folder / manifest.REJECTS)))


def path_of(dataset: Dataset, clip: Clip) -> Path:
    """The real path of a clip's sound. Raises `UserError` if it lies outside of the dataset."""
    return files.resolve_under(dataset.folder, clip.audio)


def _summary(path: Path) -> Summary:
    try:
        return Summary.model_validate(strict_json.loads(path.read_bytes()))
    except FileNotFoundError:
        command = f"python -m data_prep voice RECORDINGS --out {path.parent}"
        raise UserError(f"{path} does not exist: the folder is no dataset, or its run has not ended; make it with: {command}") from None
    except (ValueError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"{path}: not the summary of a run of data_prep voice ({first}); run it again") from error


def _rows(path: Path) -> Iterator[Row]:
    """Without their codes, which are most of a file and of no use here."""
    for row in manifest.read_rows(path, speaker=""):
        yield row.model_copy(update={"audio_codes": None})


def _rejected(path: Path) -> Iterator[Clip]:
    for number, value in manifest.read_lines(path):
        try:
            reject = Reject.model_validate(value)
            if reject.audio:
                files.resolve_under(path.parent, reject.audio)
        except (ValidationError, UserError) as error:
            raise UserError(f"{path}:{number}: no reject of data_prep ({error}); run data_prep voice again") from error
        yield _lost(reject)


def _kept(row: Row) -> Clip:
    return Clip(
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


def _lost(reject: Reject) -> Clip:
    return Clip(
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
