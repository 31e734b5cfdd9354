"""The first argument selects the verb; without one, the verbs are listed."""

from __future__ import annotations

import pytest

from overtone import __version__
from overtone.finetune.verb_dispatch import dispatch_verb, flatten_groups

GROUPS = {"Bread": {"knead": "mix the dough", "bake": "heat it"}, "Table": {"serve-up": "put it on the table"}}
LISTED = """usage: baker VERB …

Bread
  knead     mix the dough
  bake      heat it

Table
  serve-up  put it on the table

`baker VERB --help` describes a verb, `baker --version` prints the version.
"""


def call(*argv: str) -> int:
    return dispatch_verb("baker", GROUPS, {"roast": "bake, in an oven"}, lambda verb, rest: 10 * (verb == "bake") + len(rest), list(argv))


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"]])
def test_the_verbs_are_listed_in_their_groups(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*argv) == 0
    assert capsys.readouterr() == (LISTED, "")


def test_a_verb_gets_its_arguments_and_gives_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert (call("bake"), call("bake", "--help", "knead"), call("serve-up", "x")) == (10, 12, 1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("baek", "did you mean bake?"),
        ("frobnicate", "verbs are knead, bake, serve-up"),
        ("Roast", "this is bake, in an oven"),
        ("Table", "verbs are knead, bake, serve-up"),
    ],
)
def test_an_unknown_verb_is_refused_with_a_suggestion(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(word, "--help") == 2
    assert capsys.readouterr() == ("", f"error: unknown verb {word!r}; {hint}\n")


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out == f"overtone {__version__}\n"


def test_groups_become_one_table() -> None:
    assert list(flatten_groups(GROUPS)) == ["knead", "bake", "serve-up"]
