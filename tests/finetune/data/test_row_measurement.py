"""Rows that are too long are refused, dropped or truncated, as configured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from overtone.finetune.data import row_measurement
from overtone.finetune.data.index_building import Measured
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Batch, Sample
from tests.finetune import tiny

CUTTING = replace(tiny.RECIPE, truncate=lambda sample, positions: {"ids": sample["ids"][:positions]})


def test_a_row_that_is_too_long_is_an_error_with_its_place_and_the_remedy(tmp_path: Path) -> None:
    for given, key in (((), "train.micro_tokens: 100"), ((("data.sequence_length", "30"),), "data.sequence_length: 30")):
        config = tiny.config_in(tmp_path, *given)
        limit = row_measurement.LengthLimit.of(config.data, config.train)
        with pytest.raises(UserError, match=rf"101 positions do not fit {key}; raise it, or set data.too_long: drop"):
            row_measurement.measure_row(limit, tiny.RECIPE, None, {"text": "x" * 101}, tmp_path)
    assert row_measurement.measure_row(limit, tiny.RECIPE, None, {"text": "x" * 30}, tmp_path) == Measured(30)


def test_a_truncated_row_without_targets_is_dropped(tmp_path: Path) -> None:
    def collate(samples: list[Sample]) -> Batch:
        return Batch({}, {"next": sum(int((sample["ids"] == ord("!")).sum()) for sample in samples)})

    config = tiny.config_in(tmp_path, ("data.sequence_length", "5"), ("data.too_long", "truncate"))
    recipe = replace(CUTTING, collate=collate)
    limit = row_measurement.LengthLimit.of(config.data, config.train)
    assert row_measurement.measure_row(limit, recipe, None, {"text": "ab!cdefg"}, tmp_path) == Measured(5, cut=True)
    assert row_measurement.measure_row(limit, recipe, None, {"text": "abcdefg!"}, tmp_path) == Measured(
        0, left_out="no training targets in the first 5 positions"
    )
