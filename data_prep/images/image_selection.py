"""Selects labelled images: rejects some, with a reason, and assigns the others to training or validation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from overtone.data_prep.images.image_examination import ExaminedImage
from overtone.data_prep.images.label_split import choose_validation
from overtone.data_prep.images.perceptual_hash import find_duplicates
from overtone.finetune.errors import UserError


@dataclass(frozen=True)
class LabelledDataset:
    """The dataset: images for training and validation, and rejected ones."""

    train: list[ExaminedImage]
    val: list[ExaminedImage]
    rejected: list[ExaminedImage]
    """Rejected images, with their problems."""
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
    """Return the images without equal ones, the rejected ones, and the groups of equal images with different labels."""
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
    """Return a text for the error: what was found, and why images were rejected."""
    reasons = Counter(shorten_reason(image.problem) for image in dataset.rejected)
    named = "; ".join(f"{reason}: {count:,}" for reason, count in reasons.most_common(4)) or "none were rejected"
    labels = ", ".join(map(repr, dataset.labels)) or "none"
    return (
        f"a classifier needs images of two labels or more; usable labels: {labels}. Rejected images: {named}. The label of an image is the "
        'name of its folder, or "label" in its row'
    )


def shorten_reason(problem: str) -> str:
    """Return a problem without its details, for counts."""
    return problem.partition(" (")[0]
