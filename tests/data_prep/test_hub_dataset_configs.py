"""The configurations that the card of a dataset lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.data_prep.hub_dataset_configs import match_pattern, read_configurations
from overtone.finetune.errors import UserError

CARD = """---
license: mit
date: 2024-01-01
odd: @not yaml
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: [main/test-*]
- config_name: other
  data_dir: more
  data_files: "**/*.jsonl"
- config_name: third
  data_dir: third
size: 3
---
# Text
configs:
- no
"""


def test_configurations_and_their_files_are_read_from_the_header(tmp_path: Path) -> None:
    (card := tmp_path / "README.md").write_text(CARD)
    assert read_configurations(card) == {
        "main": [("train", "main/train-*"), ("test", "main/test-*")],
        "other": [(None, "more/**/*.jsonl")],
        "third": [(None, "third/**")],
    }
    card.write_text("# No header\n")
    assert read_configurations(card) == {}
    card.write_text("---\nconfigs: all\n---\n")
    with pytest.raises(UserError, match=r"README.md: configs must be a list of configurations, found 'all'"):
        read_configurations(card)


def test_patterns_mean_what_they_mean_on_the_hub() -> None:
    assert match_pattern("main/train-*", "main/train-00000.parquet") and not match_pattern("main/train-*", "main/train-0/x.parquet")
    assert match_pattern("**/*.jsonl", "a.jsonl") and match_pattern("**/*.jsonl", "a/b/c.jsonl") and match_pattern("third/**", "third/a/b")
    assert not match_pattern("a.c", "abc")


def test_patterns_with_choices_and_sets_of_letters() -> None:
    assert match_pattern("data/{train,extra}-*.parquet", "data/extra-0.parquet") and not match_pattern("{a,b}", "c")
    assert (
        match_pattern("data/train-[0-9]*.parquet", "data/train-07.parquet")
        and not match_pattern("[0-9]", "x")
        and match_pattern("[!a]", "b")
    )
    assert match_pattern("data/train**", "data/train/a/b") and match_pattern("a/**/c", "a/c") and not match_pattern("a/**/c", "a/b/d")
    assert not match_pattern("third/**", "third") and not match_pattern("[z-a]", "b")


def test_matching_takes_no_exponential_time_and_memory() -> None:
    assert not match_pattern("*a" * 30 + "b", "a" * 200) and not match_pattern("**/" * 30 + "b", "a/" * 100 + "a")
    with pytest.raises(UserError, match="has more than 1000 alternatives"):
        match_pattern("{a,b}" * 20, "a")


def test_data_dir_may_begin_with_a_dot(tmp_path: Path) -> None:
    (card := tmp_path / "README.md").write_text("---\nconfigs:\n- config_name: one\n  data_dir: ./data\n---\n")
    assert read_configurations(card) == {"one": [(None, "data/**")]}
