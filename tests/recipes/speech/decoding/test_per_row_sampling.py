"""Tests of `overtone.recipes.speech.decoding.per_row_sampling`: each row gets what `CodeSampler` chooses for it alone, after
the repetition penalty of transformers."""

from __future__ import annotations

import torch
from transformers.generation import RepetitionPenaltyLogitsProcessor

from overtone.recipes.speech.decoding.per_row_sampling import RowSampling
from overtone.recipes.speech.decoding.token_sampling import CodeSampler

SAMPLERS = (
    CodeSampler(greedy=True),
    CodeSampler(False),
    CodeSampler(False, temperature=0.7, top_k=5),
    CodeSampler(False, temperature=1.3, top_k=3, top_p=0.8, repetition_penalty=1.2),
    CodeSampler(False, top_p=0.5),
    CodeSampler(True, repetition_penalty=1.7),
    CodeSampler(False, top_k=1000),
    CodeSampler(False, temperature=0.1, top_p=0.99),
)


def test_each_row_is_sampled_with_its_own_settings() -> None:
    chance = torch.Generator().manual_seed(0)
    rows = RowSampling(len(SAMPLERS), torch.device("cpu"))
    for row, sampler in enumerate(SAMPLERS):
        rows.set_row(row, sampler)
    assert rows.plan == (True, 1000, True, True) and rows.penalizes
    chosen = set()
    for _ in range(50):
        scores = torch.randn(len(SAMPLERS), 40, generator=chance) * 2
        generated = torch.rand(len(SAMPLERS), 40, generator=chance) < 0.3
        random = torch.rand(len(SAMPLERS), generator=chance, dtype=torch.float64)
        penalized = rows.penalize_repetition(scores, generated)
        together = rows.choose(penalized, random).tolist()
        for row, sampler in enumerate(SAMPLERS):
            penalize = RepetitionPenaltyLogitsProcessor(sampler.repetition_penalty)
            expected = penalize(generated[row].nonzero().T, scores[row : row + 1])
            torch.testing.assert_close(penalized[row : row + 1], expected)
            assert together[row] == sampler.choose(expected, random[row : row + 1]).item(), sampler
        chosen.add(tuple(together))
    assert len(chosen) == 50


def test_a_row_can_change_its_settings() -> None:
    rows = RowSampling(2, torch.device("cpu"))
    scores, random = torch.tensor([[0.0, 1.0, 0.5], [0.0, 1.0, 0.5]]), torch.tensor([0.99, 0.99], dtype=torch.float64)
    assert rows.plan == (False, 0, False, False) and rows.choose(scores, random).tolist() == [1, 1]
    rows.set_row(1, CodeSampler(False))
    assert rows.plan[0] and rows.choose(scores, random).tolist() == [1, 2]
    rows.set_row(1, CodeSampler(False, top_k=1))
    assert rows.choose(scores, random).tolist() == [1, 1]
    rows.set_row(1, CodeSampler(greedy=True))
    assert rows.plan == (False, 0, False, False)
