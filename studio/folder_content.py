"""Finds what a folder holds: datasets, runs and exports, with their state, size and age."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from overtone.data_prep.chats.row_counts import MADE_BY as MADE_BY_TEXT
from overtone.data_prep.images.image_dataset_writer import MADE_BY as MADE_BY_IMAGES
from overtone.data_prep.manifest import SUMMARY, TRAIN, VAL
from overtone.finetune.cli.list_runs import DEPTH, ExportSummary, find_folders, summarize_export
from overtone.finetune.errors import UserError
from overtone.finetune.exporting.export_provenance import CARD
from overtone.finetune.monitoring.run_records import EXIT_RECORD, LOG, read_json
from overtone.finetune.monitoring.run_summary import RunSummary, count_bytes, summarize_run

DatasetKind = Literal["voice", "chats", "images"]
KINDS: dict[object, DatasetKind] = {MADE_BY_TEXT: "chats", MADE_BY_IMAGES: "images"}
"""The value of `made_by` in summary.json → the kind of the dataset; a voice dataset has no such value."""


@dataclass(frozen=True)
class DatasetSummary:
    """One dataset in the list."""

    folder: Path
    kind: DatasetKind
    has_codes: bool
    """True if its clips are encoded; always False for chats."""
    has_validation: bool
    bytes: int


@dataclass(frozen=True)
class FolderContent:
    """The datasets, runs and exports in a folder."""

    datasets: list[DatasetSummary]
    runs: list[RunSummary]
    exports: list[ExportSummary]


def list_content(place: Path) -> FolderContent:
    """Return the datasets, runs and exports in a folder, up to three folders deep. Links are not followed; hidden folders are skipped."""
    runs, exports = list[RunSummary](), list[ExportSummary]()
    for folder in find_folders([place]):
        if (folder / CARD).is_file():
            exports.append(summarize_export(folder))
        else:
            runs.append(summarize_run(folder))
    datasets = [
        DatasetSummary(
            folder,
            kind=KINDS.get(read_json(folder / SUMMARY).get("made_by"), "voice"),
            has_codes=(folder / "codes").is_dir(),
            has_validation=(folder / VAL).is_file(),
            bytes=count_bytes(folder),
        )
        for folder in find_datasets([place])
    ]
    return FolderContent(datasets, runs, exports)


def find_datasets(places: Sequence[Path], depth: int = DEPTH) -> Iterator[Path]:
    """Yield datasets at and below these folders, as `find_folders` yields runs."""
    for place in sorted(places):
        if (place / TRAIN).is_file() and (place / SUMMARY).is_file():
            yield place
        elif depth:
            inside = list[Path]()
            with contextlib.suppress(OSError):
                inside = [Path(one.path) for one in os.scandir(place) if one.is_dir(follow_symlinks=False) and one.name[:1] != "."]
            yield from find_datasets(inside, depth - 1)


def find_age(folder: Path) -> float:
    """Return when the content of a dataset, run or export was last written, in seconds since the epoch; 0 if nobody knows."""
    times = [0.0]
    for name in (LOG, EXIT_RECORD, CARD, SUMMARY, TRAIN):
        with contextlib.suppress(OSError):
            times.append((folder / name).stat().st_mtime)
    return max(times)


def find_inside(place: Path, name: str) -> Path:
    """Return the folder `name`, relative to `place`. Raises `UserError` if it is no folder there, if a link leads out of `place`, and for
    hidden folders, such as that of the studio's records, and for a name that a command would read as an option."""
    folder, parts = place / name, Path(name).parts
    is_plain = name and "\0" not in name and not Path(name).is_absolute() and not any(part.startswith((".", "-")) for part in parts)
    if not is_plain or not folder.resolve().is_relative_to(place) or not folder.is_dir():
        raise UserError(f"{name[:200]} is no folder in the studio's folder; reload the page")
    return folder
