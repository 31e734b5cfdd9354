"""Tests of `overtone.recipes.preferences.batch_targets`."""

from __future__ import annotations

import torch

from overtone.finetune.recipe import Batch
from overtone.recipes.preferences.batch_targets import ANSWER_LABELS, KL, LOSS, count_predictions, count_targets, place_answers


def test_places_follow_each_other_and_end_with_the_number_of_all() -> None:
    assert place_answers([2, 1, 3]).tolist() == [[0, 1, 6], [2, 6, 6], [3, 4, 5]]


def test_predictions_of_pairs_and_of_labelled_answers() -> None:
    pairs = Batch({"answers": place_answers([2, 1, 3, 1])}, count_targets(2, 7))
    assert count_predictions(pairs) == [3, 4]
    labelled = {"answers": place_answers([2, 1]), ANSWER_LABELS: torch.tensor([True, False])}
    assert count_predictions(Batch(labelled, count_targets(2, 3, [True, False]))) == [2, 1]


def test_each_side_of_labelled_answers_has_its_own_count() -> None:
    assert count_targets(3, 9)["chosen_reward"] == count_targets(3, 9)["rejected_reward"] == count_targets(3, 9)[LOSS] == 3
    found = count_targets(3, 9, [True, False, False])
    assert (found["chosen_reward"], found["rejected_reward"], found[LOSS], found[KL]) == (1, 2, 3, 9)
