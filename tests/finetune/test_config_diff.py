"""Two configs key by key: which keys differ, and whether they can change the numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.config import dump
from overtone.finetune.config_diff import Change, find_changes, flatten
from overtone.finetune.config_key_descriptions import fields
from overtone.finetune.config_sources import read_config_file
from tests.finetune import tiny


def test_equal_keys_are_not_listed(tmp_path: Path) -> None:
    config = tiny.config_in(tmp_path, *tiny.LORA, ("train.lr", "1e-5"), ("sample.prompts", '["a: b", "5e123"]'), ("log.trackers", "[]"))
    (tmp_path / "config.yaml").write_text(dump(config))
    assert find_changes(read_config_file(tmp_path / "config.yaml").values, config.model_dump(mode="json")) == []


def test_each_changed_key_is_listed_and_those_that_change_numbers_come_first() -> None:
    was = {"log": {"every": 1}, "train": {"lr": 4e-3, "steps": None, "compile": False}, "run": {"dir": "a"}, "options": {"gone": 1}}
    now = {"log": {"every": 5}, "train": {"lr": 1e-3, "steps": 9, "compile": True}, "run": {"dir": "b"}, "options": {}, "new": {"key": []}}
    assert [str(change) for change in find_changes(was, now)] == [
        "train.lr: 0.004 → 0.001",
        "train.steps: null → 9",
        "options: not there → {}",
        "new.key: not there → []",
        "options.gone: 1 → not there",
        "train.compile: false → true (by rounding alone)",
        "log.every: 1 → 5 (changes no number of the training)",
        "run.dir: a → b (changes no number of the training)",
    ]


def test_a_section_that_was_not_there_is_listed_key_by_key() -> None:
    lines = [str(change) for change in find_changes({"lora": None}, {"lora": {"rank": 16}})]
    assert lines == ["lora.rank: not there → 16", "lora: null → not there"]


@pytest.mark.parametrize(
    "key", ["train.lr", "train.schedule", "train.weight_decay", "train.precision", "train.steps", "train.clip", "run.seed"]
)
def test_keys_that_change_numbers_are_always_listed(key: str) -> None:
    assert Change(key, 1, 2).effect == ""


def test_every_key_of_the_schedule_and_the_update_counts(tmp_path: Path) -> None:
    """A new key of `train` decides numbers unless somebody says why not."""
    keys = [key for key, _, _ in fields(type(tiny.config_in(tmp_path))) if key.startswith(("train.", "data.", "model.", "options."))]
    excused = {key for key in keys if Change(key, 1, 2).effect}
    assert excused == {
        "train.compile", "train.activation_checkpointing", "data.train", "data.mix", "data.val", "model.source", "model.revision",
    } and len(keys) > 25  # fmt: skip


def test_nested_sections_are_flattened() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": {}}, "e": [1, {"f": 2}]}) == {"a.b.c": 1, "a.d": {}, "e": [1, {"f": 2}]}
