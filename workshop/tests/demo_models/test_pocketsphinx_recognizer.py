"""pocketsphinx recognizes a voice that it was not trained on."""

from __future__ import annotations

import json
import re
import sys
from itertools import islice

import pytest

from overtone.data_prep.audio.waveform import Samples, read_audio
from overtone.finetune.errors import UserError
from workshop.demo_models import pocketsphinx_recognizer, recognizers
from workshop.demo_models.corpus import grammar, make_new_voice


@pytest.fixture(scope="module")
def spoken() -> list[tuple[str, Samples]]:
    """Held-out sentences of `rms`."""
    lines = (make_new_voice.FOLDER / "held_out.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines[:6]]
    return [(row["text"], read_audio(make_new_voice.FOLDER / row["audio"], 24_000).samples) for row in rows]


@pytest.mark.slow
def test_the_wer_is_low_for_the_right_texts_and_high_for_others(spoken: list[tuple[str, Samples]]) -> None:
    measure = recognizers.load_recognizers([pocketsphinx_recognizer.NAME])[pocketsphinx_recognizer.NAME]
    assert measure(spoken) < 0.1
    texts = [text for text, _ in spoken]
    others = list(zip([*texts[1:], texts[0]], [samples for _, samples in spoken], strict=True))
    assert measure(others) > 0.7


def test_the_jsgf_grammar_accepts_every_sentence_of_the_grammar() -> None:
    """And every word is in Sphinx's dictionary."""
    decoder = pocketsphinx_recognizer._load_decoder()
    assert [word for word in grammar.list_words() if decoder.lookup_word(word) is None] == []
    rules = dict(
        line.removeprefix("public ").rstrip(";").split(" = ", 1) for line in pocketsphinx_recognizer.format_grammar().splitlines()[2:]
    )
    assert set(rules) == {f"<{slot}>" for slot in (*grammar.SLOTS, "what", "who", "sentence")}
    assert all(_fits(rules, sentence) for sentence in islice(grammar.generate_sentences(3, "held_out"), 200))
    assert not _fits(rules, "The river the river.") and not _fits(rules, "Anna opens.")


def _fits(rules: dict[str, str], sentence: str) -> bool:
    """Return whether a sentence follows the rules; they are not recursive, so one regular expression can contain them."""

    def pattern(rule: str) -> str:
        known = re.sub(r"/[\d.]+/ ", "", rules[rule])
        return "(?:" + re.sub(r"<\w+>", lambda slot: pattern(slot[0]), known.replace(" | ", "|")) + ")"

    return re.fullmatch(pattern("<sentence>"), " ".join(grammar.split_words(sentence))) is not None


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)
    with pytest.raises(UserError, match=r"--asr pocketsphinx: the package is not installed; pip install 'overtone\[align\]'"):
        pocketsphinx_recognizer.load_recognizer()
