"""The rows, lengths and problems of a run's data, from some of its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from overtone.finetune.data.batching import Order, count_steps
from overtone.finetune.errors import UserError
from overtone.finetune.planning.data_preview import LOOKED_AT, preview_data, read_some_rows
from tests.finetune import tiny


def test_the_lengths_of_all_rows_are_estimated_from_some(tmp_path: Path) -> None:
    config = tiny.config_in(tmp_path)
    rows = [("x" * (5 + row % 7)) for row in range(2000)]
    tiny.write_rows(tmp_path / "train.jsonl", rows)
    found = preview_data(config, tiny.RECIPE, None)
    assert found.rows == 2000 and LOOKED_AT <= found.looked_at <= 2 * LOOKED_AT and not found.problems
    assert found.positions == pytest.approx(sum(map(len, rows)), rel=0.05)
    assert next(read_some_rows(tmp_path / "train.jsonl"))[0] == 1


def test_the_steps_of_a_small_file_are_those_of_training(tmp_path: Path) -> None:
    """A step never holds rows of two epochs, so ten epochs of two rows are ten steps."""
    tiny.write_rows(tmp_path / "train.jsonl", ["a short one", "and a longer one"])
    config = tiny.config_in(tmp_path, ("train.steps", "null"), ("train.epochs", "10"))
    assert preview_data(config, tiny.RECIPE, None).count_steps(Order.of(config.run.seed, config.data, config.train), 10) == 10
    tiny.write_rows(tmp_path / "train.jsonl", tiny.texts(700))
    lengths = np.array([len(text) for text in tiny.texts(700)])
    found = preview_data(config, tiny.RECIPE, None)
    assert found.looked_at == 700 and found.count_steps(Order.of(config.run.seed, config.data, config.train), 3) == count_steps(
        Order.of(config.run.seed, config.data, config.train), lengths, 3
    )


def test_a_mixture_is_estimated_by_its_shares(tmp_path: Path) -> None:
    tiny.write_rows(tmp_path / "long.jsonl", ["x" * 40] * 30)
    tiny.write_rows(tmp_path / "short.jsonl", ["x" * 10] * 10)
    mix = f"[{{path: {tmp_path / 'long.jsonl'}, weight: 1}}, {{path: {tmp_path / 'short.jsonl'}, weight: 3}}]"
    found = preview_data(tiny.config_in(tmp_path, ("data.train", "null"), ("data.mix", mix), ("train.steps", "null")), tiny.RECIPE, None)
    assert (found.rows, found.looked_at, found.problems) == (40, 40, ())
    assert found.positions == pytest.approx(40 * (0.25 * 40 + 0.75 * 10)), "of an epoch: as many samples as rows"
    assert found.shares[1].startswith("short: 0.75 of the samples (10 rows of 10 positions on average; 3 passes in an epoch")


def test_bad_rows_and_rows_without_targets_are_found(tmp_path: Path) -> None:
    tiny.write_rows(tmp_path / "train.jsonl", ["fine and long", "x"])
    found = preview_data(tiny.config_in(tmp_path), tiny.RECIPE, None)
    assert len(found.problems) == 1 and "train.jsonl:2" in found.problems[0]


def test_two_files_of_one_content_are_a_problem_of_a_mixture(tmp_path: Path) -> None:
    for name, rows in {"a": ["one text"], "b": ["new text"], "c": ["one text"], "d": ["a longer text"]}.items():
        tiny.write_rows(tmp_path / f"{name}.jsonl", rows)
    tiny.config_in(tmp_path)
    mixed = ", ".join(f"{{path: {tmp_path}/{name}.jsonl}}" for name in "abcd")
    found = preview_data(tiny.config_in(tmp_path, ("data.train", "null"), ("data.mix", f"[{mixed}]")), tiny.RECIPE, None)
    assert len(found.problems) == 1 and "a.jsonl and " in found.problems[0] and "c.jsonl have the same content" in found.problems[0]


def test_a_row_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "fine"}\n{"text": "\\ud800"}\n')
    with pytest.raises(UserError, match=r"train\.jsonl:2: not a line of JSON \(half of a character"):
        preview_data(tiny.config_in(tmp_path), tiny.RECIPE, None)
