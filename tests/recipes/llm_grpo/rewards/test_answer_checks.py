"""Checks of an answer by its text."""

from __future__ import annotations

import pytest
import regex

from overtone.recipes.llm_grpo.rewards import answer_checks
from overtone.recipes.llm_grpo.rewards.answer_checks import RewardError, find_row_problem, match_number, match_pattern, read_number


@pytest.mark.parametrize(
    ("text", "expected", "reward"),
    [
        ("42", "42", 1.0),
        ("17 + 25 = 42.", 42, 1.0),
        ("It is 41, no, 42", 42.0, 1.0),
        ("42 or 43", 42, 0.0),
        ("1,234.50 in all", 1234.5, 1.0),
        ("-7", -7, 1.0),
        ("7", -7, 0.0),
        ("6.0e2", 600, 1.0),
        ("none", 42, 0.0),
        ("", 0, 0.0),
        ("42.0000001", 42, 1.0),
        ("42.1", 42, 0.0),
    ],
)
def test_the_last_number_counts(text: str, expected: str | float, reward: float) -> None:
    assert match_number(text, expected, 1e-6) == reward


@pytest.mark.parametrize(
    ("value", "number"), [("1,000", 1000.0), (3, 3.0), (2.5, 2.5), (True, None), ("4 apples", None), (None, None), ("", None)]
)
def test_an_answer_of_a_row_must_be_a_number(value: object, number: float | None) -> None:
    assert read_number(value) == number  # type: ignore[arg-type]


def test_the_whole_answer_must_match_and_a_slow_pattern_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert match_pattern(" yes \n", regex.compile("yes|no")) == 1 and match_pattern("yes!", regex.compile("yes|no")) == 0
    monkeypatch.setattr(answer_checks, "MATCH_SECONDS", 0.05)
    with pytest.raises(RewardError, match="had not matched after 0.05 s"):
        match_pattern("a" * 40 + "c", regex.compile("(a|a)+b"))


@pytest.mark.parametrize(
    ("row", "needs", "problem"),
    [
        ({"answer": "x"}, (True, False, False), None),
        ({}, (True, False, False), "exact_match needs 'answer', a text or a number, found None"),
        ({"answer": True}, (True, False, False), "exact_match needs 'answer'"),
        ({"answer": "x"}, (False, True, False), "numeric_answer needs 'answer', a number, found 'x'"),
        ({"schema": "x"}, (False, False, True), "json_schema needs 'schema', a JSON schema, or one for all rows"),
        ({"schema": {}}, (False, False, True), None),
    ],
)
def test_a_row_without_what_a_reward_needs_is_named(row: dict[str, object], needs: tuple[bool, bool, bool], problem: str | None) -> None:
    found = find_row_problem(row, *needs)  # type: ignore[arg-type]
    assert found is None if problem is None else problem in str(found)
