"""Tests of `overtone.recipes.preferences.preference_terms`: metrics of pairs and of labelled answers, computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from overtone.finetune.recipe import DIVERGENCE, REFERENCE, Batch
from overtone.recipes.language.modeling.causal_model import score_tokens
from overtone.recipes.llm_dpo import answer_batches
from overtone.recipes.llm_dpo.answer_batches import Sample, make_labelled, make_pair
from overtone.recipes.llm_dpo.options import Options
from overtone.recipes.preferences.preference_terms import attach_objective, compute_terms, report_means, sum_answers

PROMPT, OTHER = [7, 8], [9]


def side(prompt: list[int], tokens: int) -> tuple[list[int], list[bool]]:
    return [*prompt, *range(tokens)], [*(False for _ in prompt), *(True for _ in range(tokens))]


def measure(samples: list[Sample], own: list[list[float]], base: list[list[float]] | None, options: Options, **more: Tensor) -> Any:
    """The batch, and the sums of its terms for these log-probabilities of each answer's tokens."""

    class Given(nn.Module):
        def forward(self, tensors: dict[str, Tensor], lengths: tuple[int, ...], result: str) -> Tensor:
            return torch.tensor([value for answer in own for value in answer], requires_grad=True)

    model, batch = Given(), answer_batches.pack(samples)
    attach_objective(model, options, options.desirable_weight, options.undesirable_weight)
    batch = Batch({**batch.tensors, **more}, batch.targets, batch.lengths)
    if base is not None:
        batch.tensors[REFERENCE] = torch.tensor([value for answer in base for value in answer])
    return batch, {name: float(term.sum.detach()) for name, term in compute_terms(score_tokens, model, batch).items()}


def test_metrics_of_pairs_are_sums_over_pairs() -> None:
    pairs = [make_pair(side(PROMPT, 2), side(PROMPT, 1)), make_pair(side(OTHER, 1), side(OTHER, 3))]
    own, base = [[-1.0, -2.0], [-3.0], [-1.0], [-1.0, -1.0, -1.0]], [[-2.0, -2.0], [-1.0], [-1.0], [-1.0, -2.0, -1.0]]
    batch, found = measure(pairs, own, base, Options(beta=0.5))
    assert batch.targets == dict.fromkeys(found, 2) | {"kl": 7}
    assert found["chosen_reward"] == pytest.approx(0.5 * (1 + 0)) and found["rejected_reward"] == pytest.approx(0.5 * (-2 + 1))
    assert found["margin"] == pytest.approx(0.5 * (3 - 1)) and found["accuracy"] == 1
    assert (found["chosen_log_probability"], found["rejected_log_probability"]) == (-4, -6)
    assert (found["chosen_tokens"], found["rejected_tokens"]) == (3, 4)
    assert (found["chosen_longer"], found["longer_preferred"]) == (1, 2)  # in both, the longer answer has the higher reward
    assert found["kl"] == pytest.approx((2 * (-1) ** 2 + 2**2) / 2)


def test_without_a_reference_there_is_no_divergence_from_it() -> None:
    pairs = [make_pair(side(PROMPT, 2), side(PROMPT, 1))]
    assert "kl" not in measure(pairs, [[-1.0, -2.0], [-3.0]], None, Options(objective="simpo"))[1]


def test_metrics_of_labelled_answers_are_counted_for_each_label() -> None:
    answers = [
        make_labelled(side(prompt, count), label) for prompt, count, label in ((PROMPT, 2, True), (OTHER, 1, False), (OTHER, 2, False))
    ]
    own, base = [[-1.0, -1.0], [-2.0], [-1.0, -1.0]], [[-1.0, -4.0], [-1.0], [-3.0, -3.0]]
    batch, found = measure(answers, own, base, Options(objective="kto", beta=0.5), **{DIVERGENCE: torch.tensor(2.0)})
    assert {name: count for name, count in batch.targets.items() if name != "kl"} == {
        **dict.fromkeys(("preference", "accuracy", "mismatched_kl", "desirable"), 3),
        **dict.fromkeys(("chosen_reward", "chosen_log_probability", "chosen_tokens"), 1),
        **dict.fromkeys(("rejected_reward", "rejected_log_probability", "rejected_tokens"), 2),
    }
    assert set(batch.targets) == set(found)
    sigmoid = [1 / (1 + math.exp(-0.5 * (ratio - 2))) for ratio in (3, -1, 4)]
    assert found["preference"] == pytest.approx(1 - sigmoid[0] + sigmoid[1] + sigmoid[2])
    assert found["accuracy"] == 2 and found["desirable"] == 1 and found["mismatched_kl"] == 6
    assert found["chosen_reward"] == 1.5 and found["rejected_reward"] == pytest.approx(0.5 * (-1 + 4))
    assert (found["chosen_tokens"], found["rejected_tokens"]) == (2, 3)


def test_metrics_of_a_label_without_answers_are_not_reported() -> None:
    means = dict.fromkeys(("chosen_reward", "chosen_tokens", "rejected_reward", "rejected_tokens"), 2.0) | {"loss": 0.5}
    assert report_means(means) == means  # of pairs
    assert report_means({**means, "rejected_reward": 1.0, "desirable": 0.5})["margin"] == 1
    assert report_means({**means, "desirable": 1.0}).keys() == {"chosen_reward", "chosen_tokens", "loss", "desirable"}
    assert report_means({**means, "desirable": 0.0}).keys() == {"rejected_reward", "rejected_tokens", "loss", "desirable"}


def test_padding_of_places_adds_nothing() -> None:
    assert sum_answers(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([[0, 1], [2, 3]])).tolist() == [3.0, 4.0]
