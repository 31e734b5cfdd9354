"""Checks of an answer by its text or its length alone. A check of the text returns a reward from 0 to 1, and raises `RewardError` if it
cannot decide."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import regex
from pydantic import JsonValue

NUMBER = re.compile(r"(?:(?<![\w.)])[-+−])?(?:(?:\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+−]?\d+)?", re.ASCII)
"""A number, with commas between thousands; a sign that follows a word or a number is a dash or an operator."""
QUOTIENT = re.compile(rf"{NUMBER.pattern}(?:/{NUMBER.pattern})*", re.ASCII)
"""Numbers with slashes: a fraction, or a date."""
LARGEST = (2 - 2**-23) * 2.0**127
"""Largest number of fp32, in which rewards are logged and trained."""
ANSWER = "answer"
"""Key of a row with the expected answer."""


class RewardError(Exception):
    """A reward that could not be computed."""


class RewardTimeoutError(RewardError):
    """A reward that took too long."""


def match_pattern(text: str, pattern: str) -> float:
    """Return 1 if the pattern matches the whole answer without white space around it. It may never end, so the child process calls it."""
    return float(regex.fullmatch(pattern, text.strip()) is not None)


def match_number(text: str, expected: JsonValue, tolerance: float) -> float:
    """Return 1 if the last number of the answer is the expected one, with `tolerance` as in `NumericAnswer`. 5/6 is a number; 1/2/2024 is
    none."""
    wanted, found = read_number(expected), QUOTIENT.findall(text)
    assert wanted is not None  # `find_row_problem`
    parts = [_parse(part) for part in found[-1].split("/")] if found else []
    if not 1 <= len(parts) <= 2 or 0 in parts[1:]:
        return 0.0
    return float(abs(parts[0] / math.prod(parts[1:]) - wanted) <= tolerance * max(1.0, abs(wanted)))


def read_number(value: JsonValue) -> float | None:
    """Return a row's answer as a finite number: one, or a text that is nothing but one, with commas between thousands; None otherwise."""
    if isinstance(value, str):
        number = _parse(value.strip()) if NUMBER.fullmatch(value.strip()) else math.nan
    else:
        number = float(value) if isinstance(value, float) or (type(value) is int and abs(value) < LARGEST) else math.nan
    return number if math.isfinite(number) else None


def _parse(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))


def punish_length(tokens: int, longest: int, last: int) -> float:
    """Return the soft overlong punishment of DAPO (Yu et al. 2025, arXiv:2503.14476, eq. 13) with L_max = `longest` and L_cache = `last`: 0
    up to L_max − L_cache tokens, from there on a line that falls to −1 at L_max, and −1 beyond it. `tokens`: of the answer, with the one
    that ended it."""
    if tokens <= longest - last:
        return 0.0
    if tokens <= longest:
        return (longest - last - tokens) / last
    return -1.0


def find_row_problem(row: Mapping[str, JsonValue], exact: bool, numeric: bool, own_schema: bool) -> str | None:
    """Return what a row lacks for the rewards that are set; None if nothing."""
    answer = row.get(ANSWER)
    if exact and not (isinstance(answer, str | int | float) and not isinstance(answer, bool)):
        return f"the reward exact_match needs {ANSWER!r}, a text or a number, found {answer!r:.40}"
    if numeric and read_number(answer) is None:
        return f"the reward numeric_answer needs {ANSWER!r}, a finite number, found {answer!r:.40}"
    if own_schema and not isinstance(row.get("schema"), dict):
        return "the reward json_schema needs 'schema', a JSON schema, or one for all rows as options.rewards.json_schema.file"
    return None
