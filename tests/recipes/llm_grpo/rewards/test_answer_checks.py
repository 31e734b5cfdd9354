"""Checks of an answer by its text or its length."""

from __future__ import annotations

import json

import pytest

from overtone.recipes.llm_grpo.rewards.answer_checks import find_row_problem, match_number, match_pattern, punish_length, read_number


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
        ("−7", -7, 1.0),
        ("−7", 7, 0.0),
        ("2e−1", 0.2, 1.0),
        ("5/6", 6, 0.0),
        ("5/6", 5 / 6, 1.0),
        ("-6/2", -3, 1.0),
        ("5/0", 5, 0.0),
        ("1/2/2024", 2024, 0.0),
        ("1e9999", 9, 0.0),
        ("1e9999/1e9999", 1, 0.0),
        ("10-12", 12, 1.0),
        ("(3,4)", 34, 0.0),
        ("1,234,567", 1234567, 1.0),
    ],
)
def test_the_last_number_counts(text: str, expected: str | float, reward: float) -> None:
    assert match_number(text, expected, 1e-6) == reward


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("1,000", 1000.0),
        (3, 3.0),
        (2.5, 2.5),
        (True, None),
        ("4 apples", None),
        (None, None),
        ("", None),
        ("−3", -3.0),
        ("1e400", None),
        (float("inf"), None),
        (float("nan"), None),
        (10**400, None),
        ("1/2", None),
        ([1], None),
    ],
)
def test_an_answer_of_a_row_must_be_a_number(value: object, number: float | None) -> None:
    assert read_number(value) == number  # type: ignore[arg-type]


def test_the_whole_answer_must_match() -> None:
    assert match_pattern(" yes \n", "yes|no") == 1 and match_pattern("yes!", "yes|no") == 0


@pytest.mark.parametrize(
    ("row", "needs", "problem"),
    [
        ({"answer": "x"}, (True, False, False), None),
        ({}, (True, False, False), "exact_match needs 'answer', a text or a number, found None"),
        ({"answer": True}, (True, False, False), "exact_match needs 'answer'"),
        ({"answer": "x"}, (False, True, False), "numeric_answer needs 'answer', a finite number, found 'x'"),
        ({"answer": json.loads("1" + "0" * 400)}, (False, True, False), "a finite number, found 1000"),
        ({"schema": "x"}, (False, False, True), "json_schema needs 'schema', a JSON schema, or one for all rows"),
        ({"schema": {}}, (False, False, True), None),
    ],
)
def test_a_row_without_what_a_reward_needs_is_named(row: dict[str, object], needs: tuple[bool, bool, bool], problem: str | None) -> None:
    found = find_row_problem(row, *needs)  # type: ignore[arg-type]
    assert found is None if problem is None else problem in str(found)


def test_the_overlong_punishment_is_that_of_dapo() -> None:
    """Equation 13 with the numbers of the paper: 16,384 tokens without punishment, and 4,096 in which it grows."""
    found = [punish_length(tokens, 20480, 4096) for tokens in (1, 16384, 16385, 18432, 20480, 20481)]
    assert found == [0.0, 0.0, -1 / 4096, -0.5, -1.0, -1.0] and str(found[0]) == "0.0"
    assert [punish_length(tokens, 4, 4) for tokens in (0, 1, 4, 5)] == [0.0, -0.25, -1.0, -1.0], "the whole limit"
