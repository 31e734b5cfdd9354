"""Tests of `overtone.recipes.llm_dpo.answer_batches`: places of answers in packed and padded batches, and mismatched answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from overtone.finetune.recipe import Batch
from overtone.recipes.llm_dpo.answer_batches import (
    Sample,
    collate,
    make_labelled,
    make_pair,
    mismatch,
    pack,
    split_sample,
)
from overtone.recipes.preferences.batch_targets import ANSWER_LABELS, count_predictions

CHOSEN, REJECTED = ([1, 2, 10, 11], [False, False, True, True]), ([1, 2, 12], [False, False, True])
LABELLED = ([3, 13, 14, 5], [False, True, True, False])


def list_answers(samples: list[Sample], packed: bool) -> list[list[int]]:
    """The tokens that `answers` of a batch name."""
    batch = (pack if packed else collate)(samples)
    targets = batch.tensors["targets"].flatten()[batch.tensors["supervised"]].tolist()
    return [[targets[place] for place in places if place < len(targets)] for places in batch.tensors["answers"].tolist()]


@pytest.mark.parametrize("packed", [True, False])
def test_answers_are_found_in_every_layout(packed: bool) -> None:
    pair, other = make_pair(CHOSEN, REJECTED), make_pair(REJECTED, CHOSEN)
    assert list_answers([pair, other], packed) == [[10, 11], [12], [12], [10, 11]]
    assert list_answers([make_labelled(LABELLED, True), make_labelled(REJECTED, False)], packed) == [[13, 14], [12]]


@pytest.mark.parametrize("lay", [pack, collate])
def test_predictions_of_each_sample_are_counted(lay: Callable[[list[Sample]], Batch]) -> None:
    assert count_predictions(lay([make_pair(CHOSEN, REJECTED), make_pair(REJECTED, REJECTED)])) == [3, 2]
    assert count_predictions(lay([make_labelled(LABELLED, True), make_labelled(REJECTED, False)])) == [2, 1]


def test_a_padded_pair_has_a_row_for_each_side() -> None:
    assert collate([make_pair(CHOSEN, REJECTED)]).tensors["ids"].tolist() == [[1, 2, 10, 11], [1, 2, 12, 0]]


def test_a_pair_is_split_into_its_sides() -> None:
    first, second = split_sample(make_pair(CHOSEN, REJECTED))
    assert (first["ids"].tolist(), second["ids"].tolist()) == (CHOSEN[0], REJECTED[0])


def test_a_mismatched_answer_follows_the_prompt_of_the_row() -> None:
    found = mismatch(make_labelled(CHOSEN, True), make_labelled(LABELLED, False), 99)
    assert found is not None and found["ids"].tolist() == [1, 2, 13, 14, 5] and bool(found["label"])
    assert found["supervised"].tolist() == [False, False, True, True, False]


@pytest.mark.parametrize(("positions", "ids"), [(5, [1, 2, 13, 14, 5]), (4, [1, 2, 13, 14]), (3, [1, 2, 13])])
def test_a_mismatched_answer_is_cut_at_the_largest_number_of_positions(positions: int, ids: list[int]) -> None:
    found = mismatch(make_labelled(CHOSEN, True), make_labelled(LABELLED, False), positions)
    assert found is not None and found["ids"].tolist() == ids
    assert found["supervised"].tolist() == [False, False, True, True, False][:positions]


def test_an_answer_to_the_same_prompt_is_no_mismatch() -> None:
    assert mismatch(make_labelled(CHOSEN, True), make_labelled(REJECTED, False), 99) is None


def test_labels_are_counted() -> None:
    batch = pack([make_labelled(CHOSEN, True), make_labelled(REJECTED, False), make_labelled(LABELLED, False)])
    assert batch.tensors[ANSWER_LABELS].tolist() == [True, False, False]
    assert (batch.targets["chosen_reward"], batch.targets["rejected_tokens"], batch.targets["kl"]) == (1, 2, 5)
    assert torch.equal(batch.tensors["answers"], torch.tensor([[0, 1], [2, 5], [3, 4]]))
