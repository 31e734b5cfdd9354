"""Labels are found in the data, in an order that does not depend on the order of the rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PretrainedConfig

from overtone.finetune.errors import UserError
from overtone.recipes.class_labels import choose_labels, collect_labels, find_label, read_base_labels
from tests.recipes.image_classification.tiny_images import make_config, write_rows


def collect(folder: Path, names: list[object]) -> list[str]:
    config = make_config(folder)
    write_rows(folder / "train.jsonl", [{"image": "x.png", "label": name} for name in names])
    return collect_labels(config.data)


def test_names_are_sorted_and_numbers_counted(tmp_path: Path) -> None:
    assert collect(tmp_path, ["b", "a", "10", "b"]) == ["10", "a", "b"]
    assert collect(tmp_path, ["10", "9", "100"]) == ["9", "10", "100"]
    assert collect(tmp_path, [10, "-1", 0, -2, 1]) == ["-2", "-1", "0", "1", "10"]
    long = "9" * 5000
    assert collect(tmp_path, [f"1{long}", long, "-3"]) == ["-3", long, f"1{long}"], "Python converts no such text to an int"
    assert collect(tmp_path, ["b", 3.5, True, "", None, "a"]) == ["a", "b"], "invalid rows are reported by the index"


def test_a_whole_number_is_its_digits(tmp_path: Path) -> None:
    assert collect(tmp_path, [2, 0, 10, "1"]) == ["0", "1", "2", "10"]


def test_a_label_that_the_training_data_lacks_is_an_error() -> None:
    assert find_label({"label": "b"}, ["a", "b"]) == 1 == find_label({"label": 1}, ["0", "1"])
    with pytest.raises(UserError, match="\"label\" is 'c', which is not among the 2 labels of the training data"):
        find_label({"label": "c"}, ["a", "b"])
    with pytest.raises(UserError, match='"label" must be the name of a class, found None'):
        find_label({"text": "x"}, ["a", "b"])


def test_one_label_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='has 1 different values of "label"; a classifier needs 2'):
        collect(tmp_path, ["a", "a"])


@pytest.mark.parametrize("names", [[True, False], [1.0, 0.0], ["a", True]])
def test_the_first_invalid_label_is_named_if_too_few_are_found(names: list[object], tmp_path: Path) -> None:
    line = next(number for number, name in enumerate(names, 1) if not isinstance(name, str))
    problem = (
        rf"train\.jsonl:{line}: \"label\" must be the name of a class, found {names[line - 1]}; write a text in quotes or a whole number"
    )
    with pytest.raises(UserError, match=rf"has {line - 1} different values of .*; the first invalid row is .*{problem}"):
        collect(tmp_path, names)


def test_names_of_a_base_have_no_gaps() -> None:
    assert read_base_labels(PretrainedConfig(id2label={1: "b", 0: "a"}), Path("base")) == ["a", "b"]
    with pytest.raises(UserError, match=r"base/config\.json: id2label has no name for output 1 of 2; number the names from 0"):
        read_base_labels(PretrainedConfig(id2label={0: "a", 2: "b"}), Path("base"))


def test_labels_of_a_base_must_include_those_of_the_data(tmp_path: Path) -> None:
    data = make_config(tmp_path).data
    assert choose_labels(data, ["red", "green", "blue", "violet"]) == ["red", "green", "blue", "violet"]
    assert choose_labels(data, None) == ["blue", "green", "red"]
    with pytest.raises(UserError, match="the base does not know the label 'red'"):
        choose_labels(data, ["green", "blue"])
