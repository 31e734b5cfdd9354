"""Checks of an answer by its text alone. Each returns a reward from 0 to 1; one that cannot decide raises `RewardError`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import regex
from pydantic import JsonValue

NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3})?")
MATCH_SECONDS = 5.0
"""Limit for one answer; usual patterns take microseconds."""
ANSWER = "answer"
"""Key of a row with the expected answer."""


class RewardError(Exception):
    """A reward that could not be computed."""


def match_pattern(text: str, pattern: regex.Pattern[str]) -> float:
    """Return 1 if the pattern matches the whole answer without white space around it. Raises `RewardError` if that takes seconds."""
    try:
        return float(pattern.fullmatch(text.strip(), timeout=MATCH_SECONDS) is not None)
    except TimeoutError:
        raise RewardError(f"the pattern had not matched after {MATCH_SECONDS:g} s") from None


def match_number(text: str, expected: JsonValue, tolerance: float) -> float:
    """Return 1 if the last number of the answer is the expected one, with `tolerance` as in `NumericAnswer`."""
    wanted, found = read_number(expected), NUMBER.findall(text)
    assert wanted is not None  # `check_row`
    if not found:
        return 0.0
    return float(abs(float(found[-1].replace(",", "")) - wanted) <= tolerance * max(1.0, abs(wanted)))


def read_number(value: JsonValue) -> float | None:
    """Return a row's answer as a number: one, or a text that is nothing but one, with commas between thousands; None otherwise."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    text = value.strip() if isinstance(value, str) else ""
    return float(text.replace(",", "")) if NUMBER.fullmatch(text) else None


def find_row_problem(row: Mapping[str, JsonValue], exact: bool, numeric: bool, own_schema: bool) -> str | None:
    """Return what a row lacks for the rewards that are set; None if nothing."""
    answer = row.get(ANSWER)
    if exact and not (isinstance(answer, str | int | float) and not isinstance(answer, bool)):
        return f"the reward exact_match needs {ANSWER!r}, a text or a number, found {answer!r:.40}"
    if numeric and read_number(answer) is None:
        return f"the reward numeric_answer needs {ANSWER!r}, a number, found {answer!r:.40}"
    if own_schema and not isinstance(row.get("schema"), dict):
        return "the reward json_schema needs 'schema', a JSON schema, or one for all rows as options.rewards.json_schema.file"
    return None
