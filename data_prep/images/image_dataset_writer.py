"""Decides which images are kept, and writes the dataset in a safe order: train.jsonl last, when all that it names is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data_prep.images.image_examination import IMAGES, STAGES, ExaminedImage
from data_prep.images.label_split import choose_validation
from data_prep.images.perceptual_hash import find_duplicates
from data_prep.manifest import REJECTS, SUMMARY, TRAIN, VAL
from finetune.errors import UserError
from finetune.storage import files

MADE_BY = "data_prep images"
REPORT, LABELS = "report.html", "labels.json"


@dataclass(frozen=True)
class LabelledDataset:
    """What becomes of each image that was found."""

    train: list[ExaminedImage]
    val: list[ExaminedImage]
    rejected: list[ExaminedImage]
    """With their problems."""
    conflicts: list[list[ExaminedImage]] = field(default_factory=list)
    """Groups of equal images with different labels; all of them are rejected."""

    @property
    def labels(self) -> list[str]:
        return sorted({str(image.label) for image in self.train})


def select_images(examined: Sequence[ExaminedImage], val_share: float) -> LabelledDataset:
    """Reject images with problems, without labels, for tests, and equal ones; then split the others, unless the source has a validation
    split of its own. Raises `UserError` if fewer than two labels are left to train on."""
    usable: list[ExaminedImage] = []
    rejected: list[ExaminedImage] = []
    for image in examined:
        reason = image.problem or (
            "no label" if image.label is None else "in a test split" if image.split not in ("", "train", "val") else ""
        )
        (rejected if reason else usable).append(replace(image, problem=reason))
    usable.sort(key=lambda image: image.split != "val")  # of equal images in two splits, the one for validation stays
    kept, equal, conflicts = remove_duplicates(usable)
    if any(image.split == "val" for image in kept):
        chosen = {number for number, image in enumerate(kept) if image.split == "val"}
    else:
        chosen = choose_validation([(image.digest, str(image.label)) for image in kept], val_share)
    train = [image for number, image in enumerate(kept) if number not in chosen]
    known = {image.label for image in train}
    val = [kept[number] for number in sorted(chosen) if kept[number].label in known]
    lost = [kept[number] for number in sorted(chosen) if kept[number].label not in known]
    rejected += equal + [replace(image, problem="validation image with a label that no training image has") for image in lost]
    dataset = LabelledDataset(train, val, rejected, conflicts)
    if len(dataset.labels) < 2:
        raise UserError(explain_few_labels(dataset))
    return dataset


def remove_duplicates(images: list[ExaminedImage]) -> tuple[list[ExaminedImage], list[ExaminedImage], list[list[ExaminedImage]]]:
    """The images without equal ones, the rejected ones, and the groups of equal images with different labels."""
    problems: dict[int, str] = {}
    conflicts = []
    for group in find_duplicates([image.hash for image in images], [image.copy for image in images]):
        labels = sorted({str(images[number].label) for number in group})
        if len(labels) > 1:
            conflicts.append([images[number] for number in group])
            problems |= dict.fromkeys(group, f"the same image under {len(labels)} labels")
        else:
            problems |= dict.fromkeys(group[1:], "duplicate")
    kept = [image for number, image in enumerate(images) if number not in problems]
    return kept, [replace(images[number], problem=text) for number, text in sorted(problems.items())], conflicts


def explain_few_labels(dataset: LabelledDataset) -> str:
    """For the error: what was found, and why images were rejected."""
    reasons = Counter(shorten_reason(image.problem) for image in dataset.rejected)
    named = "; ".join(f"{reason}: {count:,}" for reason, count in reasons.most_common(4)) or "none were rejected"
    labels = ", ".join(map(repr, dataset.labels)) or "none"
    return (
        f"a classifier needs images of two labels or more; usable labels: {labels}. Rejected images: {named}. The label of an image is the "
        'name of its folder, or "label" in its row'
    )


def shorten_reason(problem: str) -> str:
    """A problem without its details, for counts."""
    return problem.partition(" (")[0]


def write_dataset(dataset: LabelledDataset, out: Path, summary: dict[str, Any]) -> None:
    """Write all files but the report, and remove images that no row names."""
    files.discard(out / TRAIN)  # from here to the end, the folder is no dataset
    files.write_jsonl(out / REJECTS, [{"source": image.place, "label": image.label, "reason": image.problem} for image in dataset.rejected])
    files.write_json(out / LABELS, dataset.labels)
    files.write_json(out / SUMMARY, summary)
    if dataset.val:
        files.write_jsonl(out / VAL, map(make_row, dataset.val))
    else:
        files.discard(out / VAL)
    named = {image.file for image in (*dataset.train, *dataset.val)}
    for path in out.glob(f"{IMAGES}/*/*"):
        if path.relative_to(out).as_posix() not in named:
            files.discard(path)
    files.write_jsonl(out / TRAIN, map(make_row, dataset.train))


def make_row(image: ExaminedImage) -> dict[str, Any]:
    """A row of train.jsonl or val.jsonl."""
    return {"image": image.file, "label": image.label, "source": image.place}


def make_summary(dataset: LabelledDataset, settings: dict[str, Any]) -> dict[str, Any]:
    """Counts of everything that was found."""
    training, validating = (Counter(str(image.label) for image in part) for part in (dataset.train, dataset.val))
    kept = [*dataset.train, *dataset.val]
    return {
        "made_by": MADE_BY,
        "found": len(kept) + len(dataset.rejected),
        "train": len(dataset.train),
        "val": len(dataset.val),
        "rejected": dict(Counter(shorten_reason(image.problem) for image in dataset.rejected).most_common()),
        "labels": {label: {"train": training[label], "val": validating[label]} for label in dataset.labels},
        "labels_without_validation": [label for label in dataset.labels if not validating[label]],
        "changes": dict(Counter(change for image in kept for change in image.changes).most_common()),
        "same_image_under_several_labels": [
            [{"source": image.place, "label": image.label} for image in group] for group in dataset.conflicts
        ],
        "settings": settings,
    }


def remove_leftovers(out: Path) -> None:
    """Remove temporary files of killed runs."""
    for folder in (out, *out.glob(f"{IMAGES}/*"), *out.glob(f"{STAGES}/*")):
        files.remove_unfinished(folder)
