"""Tests of `overtone.finetune.recipe.samples`."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from overtone.finetune.recipe import Batch, DataPreparation


def test_a_recipe_without_advice_gets_one_that_is_true_of_all() -> None:
    data = DataPreparation()
    assert "one JSON object in each line" in data.advice and (data.verb, data.row_keys) == (None, ())


def test_rows_of_a_batch_stay_on_the_host() -> None:
    batch = Batch({}, {"next": 3})
    assert batch.lengths == () and batch.targets == {"next": 3}
    with pytest.raises(FrozenInstanceError):
        batch.lengths = (1,)  # type: ignore[misc]
