"""One of several splits must be chosen, and the choices are listed."""

from __future__ import annotations

import pytest

from overtone.data_prep.dataset_split_selection import choose_splits
from overtone.finetune.errors import UserError


def test_a_split_must_be_chosen_if_there_are_several() -> None:
    assert choose_splits("recordings", "me/one", ["train"], []) == ["train"]
    assert choose_splits("recordings", "me/one", ["train", "test"], ["test"]) == ["test"]
    with pytest.raises(UserError, match="recordings me/one has several splits: train, test; choose with --split NAME, once or more"):
        choose_splits("recordings", "me/one", ["train", "test"], [])
    with pytest.raises(UserError, match="--split dev: recordings me/one has no such split; it has train, test"):
        choose_splits("recordings", "me/one", ["train", "test"], ["dev"])
