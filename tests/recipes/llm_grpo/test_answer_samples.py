"""Batches of answers: which number belongs to which token, and what the loss is divided by."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from overtone.finetune.recipe import Sample
from overtone.recipes.llm_grpo.answer_samples import collate, pack
from overtone.recipes.policy.rollout_samples import LOSS


def make_sample(prompt: int, tokens: int, targets: int, advantage: float) -> Sample:
    return {
        "ids": torch.arange(prompt + tokens),
        "supervised": torch.tensor([False] * prompt + [True] * tokens),
        "rollout": torch.arange(tokens) - 10.0 * tokens,
        "advantage": torch.tensor(advantage),
        "weight": torch.tensor(1 / tokens),
        "targets": torch.tensor(targets),
        "metric/reward": torch.tensor(advantage + 1),
    }


@pytest.mark.parametrize("lay", [collate, pack])
def test_each_token_has_the_numbers_of_its_answer(lay: Any) -> None:
    batch = lay([make_sample(2, 3, 3, 0.5), make_sample(4, 1, 1, -0.5)])
    tensors = batch.tensors
    targets = tensors["targets"].flatten()[tensors["supervised"]]
    assert targets.tolist() == [2, 3, 4, 4], "the tokens of both answers, in this order"
    assert tensors["rollout"].tolist() == [-30, -29, -28, -10]
    assert tensors["advantages"].tolist() == [0.5, 0.5, 0.5, -0.5]
    assert tensors["weights"].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1])
    assert tensors["metric/reward"].tolist() == [1.5, 0.5]
    assert batch.targets == {LOSS: 4, "reward": 2, "mismatch": 4, "kl": 4, "clipped": 4}


def test_answers_of_an_evaluation_are_counted() -> None:
    samples = [{name: make_sample(2, 3, 1, 0.0)[name] for name in ("ids", "supervised", "metric/reward")}] * 3
    batch = collate(samples)
    assert batch.targets == {LOSS: 3, "reward": 3} and "rollout" not in batch.tensors
