"""Writes a labelled image dataset: rows, labels and summary; train.jsonl last, when all that it names is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from overtone.data_prep.images.image_examination import IMAGES, STAGES, ExaminedImage
from overtone.data_prep.images.image_selection import LabelledDataset, shorten_reason
from overtone.data_prep.manifest import REJECTS, SUMMARY, TRAIN, VAL
from overtone.finetune.storage import files

MADE_BY = "overtone images"
REPORT, LABELS = "report.html", "labels.json"


class LabelCounts(TypedDict):
    """Images of a label in each split."""

    train: int
    val: int


class ConflictingImage(TypedDict):
    """One of several equal images with different labels."""

    source: str
    label: str | None


@dataclass(frozen=True)
class ImageSummary:
    """Contents of summary.json, in this order."""

    made_by: str
    found: int
    train: int
    val: int
    rejected: dict[str, int]
    """Reason → number of images."""
    labels: dict[str, LabelCounts]
    labels_without_validation: list[str]
    changes: dict[str, int]
    """Change of pixels when an image is read → number of images."""
    same_image_under_several_labels: list[list[ConflictingImage]]
    settings: Mapping[str, object]


def write_dataset(dataset: LabelledDataset, out: Path, summary: ImageSummary) -> None:
    """Write all files but the report, and remove images that no row names."""
    files.discard(out / TRAIN)  # from here to the end, the folder is no dataset
    files.write_jsonl(out / REJECTS, [{"source": image.place, "label": image.label, "reason": image.problem} for image in dataset.rejected])
    files.write_json(out / LABELS, dataset.labels)
    files.write_json(out / SUMMARY, vars(summary))
    if dataset.val:
        files.write_jsonl(out / VAL, map(make_row, dataset.val))
    else:
        files.discard(out / VAL)
    named = {image.file for image in (*dataset.train, *dataset.val)}
    for path in out.glob(f"{IMAGES}/*/*"):
        if path.relative_to(out).as_posix() not in named:
            files.discard(path)
    files.write_jsonl(out / TRAIN, map(make_row, dataset.train))


def make_row(image: ExaminedImage) -> dict[str, str | None]:
    """Return a row of train.jsonl or val.jsonl."""
    return {"image": image.file, "label": image.label, "source": image.place}


def make_summary(dataset: LabelledDataset, settings: Mapping[str, object]) -> ImageSummary:
    """Return the counts of everything that was found."""
    training, validating = (Counter(str(image.label) for image in part) for part in (dataset.train, dataset.val))
    kept = [*dataset.train, *dataset.val]
    return ImageSummary(
        made_by=MADE_BY,
        found=len(kept) + len(dataset.rejected),
        train=len(dataset.train),
        val=len(dataset.val),
        rejected=dict(Counter(shorten_reason(image.problem) for image in dataset.rejected).most_common()),
        labels={label: {"train": training[label], "val": validating[label]} for label in dataset.labels},
        labels_without_validation=[label for label in dataset.labels if not validating[label]],
        changes=dict(Counter(change for image in kept for change in image.changes).most_common()),
        same_image_under_several_labels=[[{"source": image.place, "label": image.label} for image in group] for group in dataset.conflicts],
        settings=settings,
    )


def remove_leftovers(out: Path) -> None:
    """Remove temporary files of killed runs."""
    for folder in (out, *out.glob(f"{IMAGES}/*"), *out.glob(f"{STAGES}/*")):
        files.remove_unfinished(folder)
