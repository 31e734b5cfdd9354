"""The second judge: it understands a voice that nobody made for it, and only what that voice says."""

from __future__ import annotations

import json
import re
import sys
from itertools import islice

import pytest

from data_prep.audio.waveform import Samples, read_audio
from finetune.errors import UserError
from recipes.voice_clone.studio import pocketsphinx_judge
from recipes.voice_clone.studio.corpus import grammar, make_new_voice


@pytest.fixture(scope="module")
def said() -> list[tuple[str, Samples]]:
    """Held-out sentences of `rms`."""
    lines = (make_new_voice.FOLDER / "held_out.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines[:6]]
    return [(row["text"], read_audio(make_new_voice.FOLDER / row["audio"], 24_000).samples) for row in rows]


def test_it_hears_what_is_said_and_nothing_else(said: list[tuple[str, Samples]]) -> None:
    listen = pocketsphinx_judge.judge()
    assert listen(said) < 0.1
    texts = [text for text, _ in said]
    others = list(zip([*texts[1:], texts[0]], [samples for _, samples in said], strict=True))
    assert listen(others) > 0.7


def test_every_sentence_of_the_grammar_is_one_of_jsgf() -> None:
    """And every word is in Sphinx's dictionary."""
    decoder = pocketsphinx_judge._decoder()
    assert [word for word in grammar.vocabulary() if decoder.lookup_word(word) is None] == []
    rules = dict(line.removeprefix("public ").rstrip(";").split(" = ", 1) for line in pocketsphinx_judge.jsgf().splitlines()[2:])
    assert set(rules) == {f"<{slot}>" for slot in (*grammar.SLOTS, "what", "who", "sentence")}
    assert all(_fits(rules, sentence) for sentence in islice(grammar.sentences(3, "held_out"), 200))
    assert not _fits(rules, "The river the river.") and not _fits(rules, "Anna opens.")


def _fits(rules: dict[str, str], sentence: str) -> bool:
    """Whether a sentence follows from the rules: they do not recur, so one regular expression holds them all."""

    def pattern(rule: str) -> str:
        known = re.sub(r"/[\d.]+/ ", "", rules[rule])
        return "(?:" + re.sub(r"<\w+>", lambda slot: pattern(slot[0]), known.replace(" | ", "|")) + ")"

    return re.fullmatch(pattern("<sentence>"), " ".join(grammar.words_of(sentence))) is not None


def test_where_it_is_not_installed_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)
    with pytest.raises(UserError, match=r"--asr pocketsphinx: the package is not installed; pip install 'overtone\[studio\]'"):
        pocketsphinx_judge.judge()
