"""Settings of answers: greedy unless something says otherwise, and numbers in their ranges."""

from __future__ import annotations

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.language.text_generator import AnswerSettings


@pytest.mark.parametrize(
    ("temperature", "top_p", "expected"), [(None, None, 0.0), (0.0, None, 0.0), (0.7, None, 0.7), (None, 0.9, 1.0), (0.5, 0.9, 0.5)]
)
def test_answers_are_greedy_unless_they_are_sampled(temperature: float | None, top_p: float | None, expected: float) -> None:
    settings = AnswerSettings(1, temperature, top_p)
    settings.check()
    assert settings.sampling_temperature == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (AnswerSettings(0), "--max-new-tokens 0: must be at least 1"),
        (AnswerSettings(temperature=-1.0), "--temperature -1: must not be negative"),
        (AnswerSettings(top_p=0.0), "--top-p 0: must be a probability"),
        (AnswerSettings(temperature=0.0, top_p=0.5), "--top-p has no effect with --temperature 0"),
    ],
)
def test_numbers_out_of_range_are_refused(settings: AnswerSettings, message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings.check()
