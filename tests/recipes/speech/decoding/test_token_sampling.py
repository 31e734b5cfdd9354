"""The same candidates and probabilities as in transformers."""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers.generation import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from overtone.recipes.speech.decoding import token_sampling
from overtone.recipes.speech.decoding.token_sampling import CodeSampler

VOCABULARY = 96


@pytest.fixture(scope="module")
def stream() -> torch.Tensor:
    """Logits of six steps [6, 3, V]; coarse, so that many are equal and top-k meets ties."""
    return (torch.randn(6, 3, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 8).round() / 4


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), list(itertools.product((1.0, 0.7), (0, 5, 1000), (1.0, 0.8, 0.05))))
def test_filtered_scores_equal_those_of_transformers(stream: torch.Tensor, temperature: float, top_k: int, top_p: float) -> None:
    theirs = LogitsProcessorList([TemperatureLogitsWarper(temperature)] if temperature != 1 else [])
    theirs += [TopKLogitsWarper(top_k)] if top_k else []
    theirs += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    choice, unused = CodeSampler(False, temperature, top_k, top_p), torch.zeros(3, 0, dtype=torch.int64)
    for scores in stream:
        ours = choice.filter_scores(scores)
        assert ours.equal(theirs(unused, scores))
        chosen = choice.choose(scores, torch.rand(3, dtype=torch.float64))
        assert torch.isfinite(ours.gather(1, chosen[:, None])).all(), "excluded codes are never chosen"


def test_codes_are_chosen_with_their_probabilities(stream: torch.Tensor) -> None:
    probabilities = CodeSampler(False, 0.9, 20, 0.9).filter_scores(stream[0, :1]).softmax(-1)
    draws = (torch.arange(50_000, dtype=torch.float64) + 0.5) / 50_000
    chosen = token_sampling.sample_codes(probabilities.expand(len(draws), -1), draws)
    shares = chosen.bincount(minlength=VOCABULARY) / len(draws)
    torch.testing.assert_close(shares, probabilities[0], atol=3e-5, rtol=0)
    assert (shares[probabilities[0] == 0] == 0).all()


def test_the_smallest_and_largest_random_numbers_give_a_code() -> None:
    shares = torch.tensor([[0.0, 0.3, 0.7, 0.0]]).expand(2, -1)
    assert token_sampling.sample_codes(shares, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)).tolist() == [1, 2]


def test_greedy_sampling_takes_the_most_likely_code(stream: torch.Tensor) -> None:
    assert CodeSampler(True, 0.5, 3, 0.1).choose(stream[0], torch.rand(3)).equal(stream[0].argmax(-1))
