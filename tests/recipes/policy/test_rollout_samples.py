"""What trains an answer, and batches of answers that are no text."""

from __future__ import annotations

import pytest
import torch

from overtone.finetune.recipe import Batch
from overtone.recipes.policy.policy_options import ObjectiveName
from overtone.recipes.policy.rollout_samples import LOSS, add_rollouts, make_lesson, name_metrics


@pytest.mark.parametrize(("objective", "weight", "targets"), [("grpo", 0.5, 1), ("dr_grpo", 0.1, 1), ("dapo", 1.0, 2)])
def test_an_answer_is_weighed_as_its_objective_says(objective: ObjectiveName, weight: float, targets: int) -> None:
    found = make_lesson(objective, [-1.0, -2.0], 0.5, longest=10)
    assert found["rollout"].tolist() == [-1, -2] and float(found["advantage"]) == 0.5
    assert float(found["weight"]) == pytest.approx(weight) and int(found["targets"]) == targets


def test_an_answer_that_is_not_trained_counts_nowhere() -> None:
    found = make_lesson("grpo", [-1.0, -2.0], 0.5, longest=10, trained=False)
    assert float(found["weight"]) == 0 and int(found["targets"]) == 0


def test_numbers_are_added_sample_by_sample_to_any_batch() -> None:
    samples = [
        {**make_lesson("dapo", scores, 1.0, 9), **name_metrics({"reward": reward})} for scores, reward in (([-1.0], 2.0), ([-3.0] * 2, 4.0))
    ]
    found = add_rollouts(Batch({"codes": torch.zeros(2)}, {"other": 7}), samples)
    assert found.tensors["rollout"].tolist() == [-1, -3, -3] and found.tensors["advantages"].tolist() == [1, 1, 1]
    assert found.targets == {LOSS: 3, "reward": 2, "mismatch": 3, "kl": 3, "clipped": 3}, "only what the loss reads"
