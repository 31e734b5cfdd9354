"""HTML report of an image dataset: self-contained, without network access, byte-identical for the same dataset."""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from overtone.data_prep.images.image_dataset_writer import ImageSummary
from overtone.data_prep.images.image_decoding import decode_image
from overtone.data_prep.images.image_examination import ExaminedImage
from overtone.data_prep.images.image_selection import LabelledDataset
from overtone.data_prep.pages.report_charts import make_histogram
from overtone.finetune.errors import UserError
from overtone.finetune.pages.jinja_environment import make_environment, read_style

FOLDER = Path(__file__).parent
SIDE = 96
"""Largest side of a thumbnail, in pixels."""
PER_LABEL, MOST_LABELS, MOST_CONFLICTS, MOST_REJECTED = 8, 60, 30, 200
"""Shown images of each label, labels with images, groups of equal images, and rejected images."""


class Thumbnail(NamedTuple):
    """An image in the report."""

    picture: str
    """data: URL; empty if the file is gone."""
    caption: str
    width: int
    height: int


class LabelView(NamedTuple):
    """A row of the table of labels."""

    name: str
    train: int
    val: int
    share: float
    """Width of its bar, relative to the largest label."""
    images: list[Thumbnail]


def render_report(dataset: LabelledDataset, summary: ImageSummary, out: Path) -> str:
    """Return the report as HTML."""
    kept = [*dataset.train, *dataset.val]
    charts = [
        make_histogram(title, "pixels", [float(getattr(image, key)) for image in kept], [])
        for title, key in (("Width", "width"), ("Height", "height"))
    ]
    return (
        make_environment(FOLDER)
        .get_template("image_report.html")
        .render(
            name=out.resolve().name,
            summary=summary,
            rejected=sum(summary.rejected.values()),
            labels=list_labels(dataset, summary, out),
            histograms=[chart for chart in charts if chart is not None],
            conflicts=[[make_thumbnail(image, out) for image in group] for group in dataset.conflicts[:MOST_CONFLICTS]],
            rejects=dataset.rejected[:MOST_REJECTED],
            settings=sorted(summary.settings.items()),
            most_labels=MOST_LABELS,
            style=read_style() + (FOLDER / "image_report.css").read_text(encoding="utf-8"),
        )
    )


def list_labels(dataset: LabelledDataset, summary: ImageSummary, out: Path) -> list[LabelView]:
    """Return the labels, the most frequent first, with some of their images."""
    by_label: dict[str, list[ExaminedImage]] = defaultdict(list)
    for image in (*dataset.train, *dataset.val):
        by_label[str(image.label)].append(image)
    most = max(len(images) for images in by_label.values())
    order = sorted(by_label, key=lambda label: (-len(by_label[label]), label))
    return [
        LabelView(
            label,
            **summary.labels[label],
            share=len(by_label[label]) / most,
            images=[make_thumbnail(image, out) for image in choose_images(by_label[label])] if number < MOST_LABELS else [],
        )
        for number, label in enumerate(order)
    ]


def choose_images(images: Sequence[ExaminedImage]) -> list[ExaminedImage]:
    """Return `PER_LABEL` images, the same for the same dataset, and not only the first."""
    return sorted(images, key=lambda image: hashlib.sha256(image.digest.encode()).digest())[:PER_LABEL]


def make_thumbnail(image: ExaminedImage, out: Path) -> Thumbnail:
    """Make a small PNG. It is empty for an image of a group of equal ones whose file was removed."""
    from PIL.Image import Resampling

    caption = f"{image.label} · {image.place}"
    try:
        picture = decode_image(out / image.file).image
    except UserError:
        return Thumbnail("", caption, 0, 0)
    picture.thumbnail((SIDE, SIDE), Resampling.BICUBIC)
    written = BytesIO()
    picture.save(written, "PNG")
    return Thumbnail(f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}", caption, *picture.size)
