"""What is kept, what is rejected and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_prep.images.image_dataset_writer import make_summary, select_images, write_dataset
from data_prep.images.image_examination import ExaminedImage
from finetune.errors import UserError
from finetune.storage import strict_json


def image(place: str, label: str | None, code: int, **more: Any) -> ExaminedImage:
    """An image whose hash and gray copy are those of `code` alone."""
    word = (code + 1) * 0x9E3779B97F4A7C15 % 2**64
    plain = {"split": "", "digest": f"{place}-digest", "file": f"images/00/{place}.png", "hash": word, "copy": bytes([code * 16 % 256] * 4)}
    return ExaminedImage(place=place, label=label, **{**plain, **more})


ENOUGH = [image(f"{label}{number}", label, 20 * place + number) for place, label in enumerate("xy") for number in range(5)]


def test_every_image_is_counted_once(tmp_path: Path) -> None:
    others = [
        image("broken", "x", 90, problem="cannot be decoded (OSError: torn)"),
        image("broken2", "x", 91, problem="cannot be decoded (OSError: other)"),
        image("nameless", None, 92),
        image("exam", "x", 93, split="test"),
        image("again", "x", 0),
        image("lonely", "z", 94, changes=("CMYK to RGB",)),
        image("both1", "x", 95),
        image("both2", "y", 95),
    ]
    dataset = select_images([*ENOUGH, *others], 0.2)
    summary = make_summary(dataset, {"val_share": 0.2})
    assert summary["found"] == len(ENOUGH) + len(others) == summary["train"] + summary["val"] + sum(summary["rejected"].values())
    assert summary["rejected"] == {
        "cannot be decoded": 2,
        "no label": 1,
        "in a test split": 1,
        "duplicate": 1,
        "the same image under 2 labels": 2,
    }
    assert summary["labels"] == {"x": {"train": 4, "val": 1}, "y": {"train": 4, "val": 1}, "z": {"train": 1, "val": 0}}
    assert summary["labels_without_validation"] == ["z"] and summary["changes"] == {"CMYK to RGB": 1}
    assert [[each["source"] for each in group] for group in summary["same_image_under_several_labels"]] == [["both1", "both2"]]
    stale = tmp_path / "images" / "00" / "old.png"
    stale.parent.mkdir(parents=True)
    stale.touch()
    write_dataset(dataset, tmp_path, summary)
    rows = [strict_json.loads_object(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 9 and rows[0].keys() == {"image", "label", "source"} and not stale.exists()
    assert len((tmp_path / "rejects.jsonl").read_text().splitlines()) == 7
    assert strict_json.loads((tmp_path / "labels.json").read_bytes()) == ["x", "y", "z"]


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
