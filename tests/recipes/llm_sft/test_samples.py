"""The one shift of the labels, and samples side by side or end to end."""

from __future__ import annotations

import torch

from recipes.llm_sft.samples import IGNORE, collate, following, pack, truncate


def sample(ids: list[int], supervised: list[int]) -> dict[str, torch.Tensor]:
    return {"ids": torch.tensor(ids), "supervised": torch.tensor(supervised, dtype=torch.bool)}


A = sample([5, 6, 7, 8], [0, 0, 1, 1])
B = sample([9, 4], [1, 1])


def test_each_position_is_asked_for_the_next_token_where_that_is_supervised() -> None:
    assert following(A).tolist() == [IGNORE, 7, 8, IGNORE]
    assert following(B).tolist() == [4, IGNORE], "the first token has nothing to be predicted from"


def test_padding_stands_on_the_right_and_is_not_a_target() -> None:
    batch = collate([A, B])
    assert batch.tensors["ids"].tolist() == [[5, 6, 7, 8], [9, 4, 0, 0]]
    assert batch.tensors["targets"].tolist() == [[IGNORE, 7, 8, IGNORE], [4, IGNORE, IGNORE, IGNORE]]
    assert batch.targets == {"nll": 3, "accuracy": 3} and "positions" not in batch.tensors


def test_packed_samples_start_their_positions_anew_and_do_not_predict_each_other() -> None:
    batch = pack([A, B])
    assert batch.tensors["ids"].tolist() == [[5, 6, 7, 8, 9, 4]]
    assert batch.tensors["positions"].tolist() == [[0, 1, 2, 3, 0, 1]]
    assert batch.tensors["targets"].tolist() == [[IGNORE, 7, 8, IGNORE, 4, IGNORE]]
    assert batch.targets == collate([A, B]).targets


def test_truncation_keeps_the_beginning_of_everything() -> None:
    short = truncate(A, 3)
    assert short["ids"].tolist() == [5, 6, 7] and short["supervised"].tolist() == [False, False, True]
