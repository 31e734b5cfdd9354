"""Labels are found in the data, in an order that does not depend on the order of the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.image_classification import labels
from tests.recipes.image_classification.tiny_images import make_config, write_rows


def collect(folder: Path, names: list[object]) -> list[str]:
    config = make_config(folder)
    write_rows(folder / "train.jsonl", [{"image": "x.png", "label": name} for name in names])
    return labels.collect_labels(config)


def test_names_are_sorted_and_numbers_counted(tmp_path: Path) -> None:
    assert collect(tmp_path, ["b", "a", "10", "b"]) == ["10", "a", "b"]
    assert collect(tmp_path, ["10", "9", "100"]) == ["9", "10", "100"]
    assert collect(tmp_path, ["b", 3, "", None, "a"]) == ["a", "b"], "invalid rows are reported by the index"


def test_one_label_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='has 1 different values of "label"; a classifier needs 2'):
        collect(tmp_path, ["a", "a"])


def test_labels_of_a_base_must_include_those_of_the_data(tmp_path: Path) -> None:
    config = make_config(tmp_path, ("options.head", "base"))
    assert labels.choose_labels(config, ["red", "green", "blue", "violet"]) == ["red", "green", "blue", "violet"]
    with pytest.raises(UserError, match="the base does not know the label 'red'"):
        labels.choose_labels(config, ["green", "blue"])
