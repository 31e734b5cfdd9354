"""The second judge: it understands a voice that nobody made for it, and only what that voice says."""

from __future__ import annotations

import builtins
import json
import re
from itertools import islice
from typing import Any

import pytest

from data_prep.audio import Samples, read
from finetune.errors import UserError
from recipes.voice_clone.studio import grammar, make_new_voice, sphinx


@pytest.fixture(scope="module")
def said() -> list[tuple[str, Samples]]:
    """Held-out sentences of `rms`."""
    lines = (make_new_voice.FOLDER / "held_out.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines[:6]]
    return [(row["text"], read(make_new_voice.FOLDER / row["audio"], 24_000).samples) for row in rows]


def test_it_hears_what_is_said_and_nothing_else(said: list[tuple[str, Samples]]) -> None:
    assert sphinx.word_error_rate(said) < 0.1
    texts = [text for text, _ in said]
    others = list(zip([*texts[1:], texts[0]], [samples for _, samples in said], strict=True))
    assert sphinx.word_error_rate(others) > 0.7


def test_every_sentence_of_the_grammar_is_one_of_jsgf() -> None:
    """Sphinx aligns a sentence with its own words by the same dictionary, so an unknown word or frame fails here."""
    decoder = sphinx._decoder()
    assert [word for word in grammar.vocabulary() if decoder.lookup_word(word) is None] == []
    rules = dict(line.removeprefix("public ").rstrip(";").split(" = ", 1) for line in sphinx.jsgf().splitlines()[2:])
    assert set(rules) == {f"<{slot}>" for slot in (*grammar.SLOTS, "what", "who", "sentence")}
    assert all(_fits(rules, sentence) for sentence in islice(grammar.sentences(3, "held_out"), 200))
    assert not _fits(rules, "The river the river.") and not _fits(rules, "Anna opens.")


def _fits(rules: dict[str, str], sentence: str) -> bool:
    """Whether a sentence follows from the rules: they do not recur, so one regular expression holds them all."""

    def pattern(rule: str) -> str:
        known = re.sub(r"/\d+/ ", "", rules[rule])
        return "(?:" + re.sub(r"<\w+>", lambda slot: pattern(slot[0]), known.replace(" | ", "|")) + ")"

    return re.fullmatch(pattern("<sentence>"), " ".join(grammar.words_of(sentence))) is not None


def test_where_it_is_not_installed_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pocketsphinx":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="pocketsphinx is not installed.*pip install pocketsphinx"):
        sphinx.word_error_rate([])
