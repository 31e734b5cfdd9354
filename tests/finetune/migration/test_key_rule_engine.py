"""Rules are found by key, then by section; a key without one is unknown, never dropped."""

from __future__ import annotations

import pytest

from overtone.finetune.migration.key_rule_engine import (
    Given,
    KeyOutcome,
    apply_rules,
    expect,
    flatten_keys,
    format_value,
    if_on,
    judge,
    not_there,
    sets,
)

RULES = {"a.b": sets("train.lr", 1.0), "a.*": not_there("section"), "a.c.*": not_there("inner section")}


@pytest.mark.parametrize(("key", "text"), [("a.b", "train.lr: 1.0"), ("a.x", "section"), ("a.c.d", "inner section"), ("a.x.y", "section")])
def test_the_most_specific_rule_decides(key: str, text: str) -> None:
    assert judge(RULES, key, 1, Given({})).text == text


def test_a_key_without_a_rule_is_unknown() -> None:
    (line,) = apply_rules(RULES, Given({"b": 3}))
    assert (line.key, line.value, line.outcome.kind) == ("b", 3, "unknown")


def test_every_leaf_is_a_key() -> None:
    nested = {"a": {"b": 1, "c": {}, "d": [{"e": 2}]}, "f": None}
    assert list(flatten_keys(nested)) == [("a.b", 1), ("a.c", {}), ("a.d", [{"e": 2}]), ("f", None)]


@pytest.mark.parametrize("off", [False, None, 0, "none", "no", "auto", []])
def test_a_switch_that_is_off_needs_nothing(off: object) -> None:
    rule = if_on("absent")
    assert not isinstance(rule, KeyOutcome) and rule(off, Given({})).kind == "not needed"
    assert rule(True, Given({})) == not_there("absent")


def test_another_value_than_ours_is_not_there() -> None:
    rule = expect(1, "absent")
    assert not isinstance(rule, KeyOutcome) and [rule(value, Given({})).kind for value in (1, "auto", 2)] == [
        "not needed",
        "not needed",
        "not there",
    ]


def test_a_number_is_no_boolean_and_no_auto() -> None:
    given = Given({"a": True, "b": "auto", "c": 2})
    assert [given.number(key) for key in "abcd"] == [None, None, 2, None]


def test_values_are_written_as_yaml() -> None:
    assert [format_value(value) for value in (True, False, None, 1, 1e-8)] == ["true", "false", "null", "1", "1e-08"]
