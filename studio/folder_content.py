"""Finds what a folder holds: datasets, runs and exports, with their state, size and age."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from overtone.data_prep.chats.row_counts import MADE_BY as MADE_BY_TEXT
from overtone.data_prep.images.image_dataset_writer import MADE_BY as MADE_BY_IMAGES
from overtone.data_prep.manifest import SUMMARY, TRAIN, VAL
from overtone.finetune.cli.list_runs import DEPTH, ExportSummary, summarize_export
from overtone.finetune.errors import UserError
from overtone.finetune.exporting.export_provenance import CARD
from overtone.finetune.monitoring.run_records import EXIT_RECORD, LOG, read_json
from overtone.finetune.monitoring.run_summary import RunSummary, count_bytes, is_run, summarize_run

Summary = TypeVar("Summary")
PLACE = Path(".studio")
"""Folder of the studio's records, in the folder that it shows."""
DatasetKind = Literal["voice", "voice pairs", "chats", "images"]
KINDS: dict[str, DatasetKind] = {MADE_BY_TEXT: "chats", MADE_BY_IMAGES: "images", "overtone pairs": "voice pairs"}
"""The value of `made_by` in summary.json → the kind of the dataset; a voice dataset has no such value. That of pairs is a literal, since
their module imports torch."""


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
    left_out: list[str]
    """Names of what cannot be read, each with the reason."""


@dataclass(frozen=True)
class FoundFolders:
    """The folders of datasets, runs and exports, which are not read."""

    datasets: list[Path] = field(default_factory=list)
    runs: list[Path] = field(default_factory=list)
    exports: list[Path] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Folders that cannot be listed, and those whose name is not UTF-8, each with the reason."""


def list_content(place: Path) -> FolderContent:
    """Return the datasets, runs and exports in a folder, up to three folders deep. Links are not followed; hidden folders are skipped."""
    found = find_content(place)
    left_out = [*found.left_out]

    def read(summarize: Callable[[Path], Summary], folders: Sequence[Path]) -> list[Summary]:
        read = list[Summary]()
        for folder in folders:
            try:
                read.append(summarize(folder))
            except (OSError, UserError, ValueError) as error:
                left_out.append(describe_left_out(place, folder, error))
        return read

    return FolderContent(
        read(summarize_dataset, found.datasets), read(summarize_run, found.runs), read(summarize_export, found.exports), left_out
    )


def find_content(place: Path) -> FoundFolders:
    """Return the same folders without reading their files."""
    found = FoundFolders()
    _search(found, place, place, DEPTH, in_run=False, in_dataset=False)
    return found


def _search(found: FoundFolders, place: Path, folder: Path, depth: int, in_run: bool, in_dataset: bool) -> None:
    """Add what is in a folder. A run or export contains no others, and neither does a dataset."""
    try:
        folder.name.encode()
        if not in_run and ((folder / CARD).is_file() or is_run(folder)):
            (found.exports if (folder / CARD).is_file() else found.runs).append(folder)
            in_run = True
        if not in_dataset and (folder / TRAIN).is_file() and (folder / SUMMARY).is_file():
            found.datasets.append(folder)
            in_dataset = True
        if depth and not (in_run and in_dataset):
            with os.scandir(folder) as entries:
                inside = sorted(one.path for one in entries if one.name[:1] != "." and one.is_dir(follow_symlinks=False))
            for path in inside:
                _search(found, place, Path(path), depth - 1, in_run, in_dataset)
    except (OSError, UnicodeEncodeError) as error:
        found.left_out.append(describe_left_out(place, folder, error))


def describe_left_out(place: Path, folder: Path, error: Exception) -> str:
    """Return the path of a folder that is not shown, with the reason, as UTF-8."""
    reason = "its name is not UTF-8; rename it" if isinstance(error, UnicodeEncodeError) else getattr(error, "strerror", None) or str(error)
    return f"{folder.relative_to(place)} ({reason})".encode("utf-8", "backslashreplace").decode()


def list_validation(place: Path) -> list[str]:
    """Return the files of validation rows of the datasets in a folder, relative to it."""
    return [str((folder / VAL).relative_to(place)) for folder in find_content(place).datasets if (folder / VAL).is_file()]


def summarize_dataset(folder: Path) -> DatasetSummary:
    """Return what the files of a dataset say."""
    return DatasetSummary(
        folder,
        kind=read_kind(folder),
        has_codes=(folder / "codes").is_dir(),
        has_validation=(folder / VAL).is_file(),
        bytes=count_bytes(folder),
    )


def read_kind(folder: Path) -> DatasetKind:
    """Return the kind of a dataset."""
    made_by = read_json(folder / SUMMARY).get("made_by")
    return KINDS.get(made_by, "voice") if isinstance(made_by, str) else "voice"


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
    with contextlib.suppress(OSError):  # as a name of more than 255 bytes
        if is_plain and folder.resolve().is_relative_to(place) and folder.is_dir():
            return folder
    raise UserError(f"{name[:200]} is no folder in the studio's folder; reload the page")


def find_file(folder: Path, name: str, suffixes: Collection[str]) -> Path | None:
    """Return the file `name`, relative to `folder`, that has one of these suffixes; None if there is none, and if it or a link leads out of
    the folder."""
    path = folder / name
    with contextlib.suppress(OSError):
        if path.suffix in suffixes and path.resolve().is_relative_to(folder.resolve()) and path.is_file():
            return path
    return None
