"""What is kept, what is rejected and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overtone.data_prep.images.image_examination import ExaminedImage
from overtone.data_prep.images.image_selection import select_images
from overtone.finetune.errors import UserError


def image(place: str, label: str | None, code: int, **more: Any) -> ExaminedImage:
    """An image whose hash and gray copy are those of `code` alone."""
    word = (code + 1) * 0x9E3779B97F4A7C15 % 2**64
    plain = {"split": "", "digest": f"{place}-digest", "file": f"images/00/{place}.png", "hash": word, "copy": bytes([code * 16 % 256] * 4)}
    return ExaminedImage(place=place, label=label, **{**plain, **more})


ENOUGH = [image(f"{label}{number}", label, 20 * place + number) for place, label in enumerate("xy") for number in range(5)]


def test_a_validation_split_of_the_source_is_kept_and_not_trained(tmp_path: Path) -> None:
    own = [image("v1", "x", 0, split="val"), image("v2", "y", 70, split="val"), image("v3", "q", 71, split="val")]
    dataset = select_images([*ENOUGH, *own], 0.5)
    assert [each.place for each in dataset.val] == ["v1", "v2"] and len(dataset.train) == 9
    assert {each.place: each.problem for each in dataset.rejected} == {
        "x0": "duplicate",
        "v3": "validation image with a label that no training image has",
    }


def test_fewer_than_two_labels_are_explained() -> None:
    with pytest.raises(UserError, match=r"usable labels: 'x'. Rejected images: no label: 1"):
        select_images([ENOUGH[0], image("nameless", None, 9)], 0.1)
