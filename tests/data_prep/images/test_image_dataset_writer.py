"""The summary counts every image, and the files name what was kept and what was rejected."""

from __future__ import annotations

from pathlib import Path

from overtone.data_prep.images.image_dataset_writer import make_summary, write_dataset
from overtone.data_prep.images.image_selection import select_images
from overtone.finetune.storage import strict_json
from tests.data_prep.images.test_image_selection import ENOUGH, image


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
    assert summary.found == len(ENOUGH) + len(others) == summary.train + summary.val + sum(summary.rejected.values())
    assert summary.rejected == {
        "cannot be decoded": 2,
        "no label": 1,
        "in a test split": 1,
        "duplicate": 1,
        "the same image under 2 labels": 2,
    }
    assert summary.labels == {"x": {"train": 4, "val": 1}, "y": {"train": 4, "val": 1}, "z": {"train": 1, "val": 0}}
    assert summary.labels_without_validation == ["z"] and summary.changes == {"CMYK to RGB": 1}
    assert [[each["source"] for each in group] for group in summary.same_image_under_several_labels] == [["both1", "both2"]]
    stale = tmp_path / "images" / "00" / "old.png"
    stale.parent.mkdir(parents=True)
    stale.touch()
    write_dataset(dataset, tmp_path, summary)
    rows = [strict_json.loads_object(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 9 and rows[0].keys() == {"image", "label", "source"} and not stale.exists()
    assert len((tmp_path / "rejects.jsonl").read_text().splitlines()) == 7
    assert strict_json.loads((tmp_path / "labels.json").read_bytes()) == ["x", "y", "z"]
