"""Tests of `overtone.recipes.language.collation`: shifted labels, padded and packed batches."""

from __future__ import annotations

import pytest
import torch

from overtone.recipes.language.collation import IGNORE, bounds_length, collate, pack, pad, shift_labels, truncate


def sample(ids: list[int], supervised: list[int]) -> dict[str, torch.Tensor]:
    return {"ids": torch.tensor(ids), "supervised": torch.tensor(supervised, dtype=torch.bool)}


A = sample([5, 6, 7, 8], [0, 0, 1, 1])
B = sample([9, 4], [1, 1])


def test_the_target_of_a_position_is_the_next_token_if_that_is_supervised() -> None:
    assert shift_labels(A).tolist() == [IGNORE, 7, 8, IGNORE]
    assert shift_labels(B).tolist() == [4, IGNORE], "the first token has nothing to be predicted from"


def test_padding_is_on_the_right_and_is_no_target() -> None:
    batch = collate([A, B])
    assert batch.tensors["ids"].tolist() == [[5, 6, 7, 8], [9, 4, 0, 0]]
    assert batch.tensors["targets"].tolist() == [[IGNORE, 7, 8, IGNORE], [4, IGNORE, IGNORE, IGNORE]]
    assert batch.targets == {"nll": 3, "accuracy": 3, "expert_balance": 2} and "positions" not in batch.tensors and batch.lengths == (4, 2)
    assert batch.tensors["supervised"].tolist() == [1, 2, 4], "indices of the flattened positions"


def test_packed_samples_restart_their_positions_and_do_not_predict_each_other() -> None:
    batch = pack([A, B])
    assert batch.tensors["ids"].tolist() == [[5, 6, 7, 8, 9, 4]]
    assert batch.tensors["positions"].tolist() == [[0, 1, 2, 3, 0, 1]]
    assert batch.tensors["targets"].tolist() == [[IGNORE, 7, 8, IGNORE, 4, IGNORE]]
    assert batch.tensors["supervised"].tolist() == [1, 2, 4]
    assert batch.tensors["bounds"].tolist() == [0, 4, 6] and batch.lengths == (4, 2)
    assert batch.targets == collate([A, B]).targets


def test_padded_rows_have_one_shape_and_no_targets_in_the_padding() -> None:
    rows = [pad(pack(samples), 9) for samples in ([A], [A, B], [B, B, B])]
    assert len({tuple(tensor.shape for name, tensor in row.tensors.items() if name != "supervised") for row in rows}) == 1
    tensors = rows[1].tensors
    assert tensors["ids"].tolist() == [[5, 6, 7, 8, 9, 4, 0, 0, 0]] and tensors["positions"].tolist() == [[0, 1, 2, 3, 0, 1, 0, 0, 0]]
    assert tensors["targets"].tolist() == [[IGNORE, 7, 8, IGNORE, 4, *[IGNORE] * 4]] and tensors["supervised"].tolist() == [1, 2, 4]
    assert tensors["bounds"].tolist() == [0, 4, 6, *[9] * 13] and tensors["bounds"].dtype == torch.int32
    assert rows[1].targets == pack([A, B]).targets and [row.lengths for row in rows] == [(4,), (4, 2), (2, 2, 2)]
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {name: t.dtype for name, t in pack([A, B]).tensors.items()}


def test_full_and_longer_rows_keep_their_length() -> None:
    full, longer = pad(pack([A, B]), 6).tensors, pad(pack([A, A]), 6).tensors
    assert full["ids"].shape == (1, 6) and full["bounds"].tolist() == [0, 4, *[6] * 14]
    assert longer["ids"].shape == (1, 8) and longer["bounds"].tolist() == [0, 4, *[8] * 14]


@pytest.mark.parametrize(("used", "positions", "length"), [(3, 100, 16), (17, 100, 32), (64, 4096, 64), (65, 4096, 128), (600, 4096, 1024)])
def test_bounds_have_few_different_lengths(used: int, positions: int, length: int) -> None:
    assert bounds_length(used, positions) == length


def test_truncation_keeps_the_beginning_of_every_tensor() -> None:
    short = truncate(A, 3)
    assert short["ids"].tolist() == [5, 6, 7] and short["supervised"].tolist() == [False, False, True]
