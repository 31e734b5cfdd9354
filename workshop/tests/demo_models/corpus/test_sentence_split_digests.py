"""The committed digests are those of the generator, and no model was trained on a sentence that the demo reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workshop.demo_models.corpus import grammar, make_corpus, sentence_split_digests
from workshop.demo_models.corpus.make_corpus import FAR_SIZES, CorpusLine
from workshop.demo_models.corpus.voices import KNOWN_VOICES, NEW_VOICE

COMMITTED = json.loads(sentence_split_digests.FILE.read_text())


def test_the_sentences_of_the_demo_have_the_committed_digests_and_disjoint() -> None:
    groups = sentence_split_digests.collect_demo_sentences()
    assert {name: sentence_split_digests.describe_group(texts) for name, texts in groups.items()} == COMMITTED["demo"]
    assert {name: len(texts) for name, texts in groups.items()} == {"recordings": 133, "choosing": 40, "reported": 40}
    assert {grammar.find_split(text) for text in groups["recordings"]} == {"train"}
    assert not groups["reported"] & (groups["recordings"] | groups["choosing"])


@pytest.mark.slow
def test_the_base_was_trained_on_no_reported_sentence_and_on_nothing_of_the_voice_but_distant_sizes() -> None:
    base = sentence_split_digests.collect_base_sentences()
    assert {name: sentence_split_digests.describe_group(texts) for name, texts in base.items()} == COMMITTED["base"]
    heard = frozenset().union(*base.values())
    demo = sentence_split_digests.collect_demo_sentences()
    assert not heard & demo["reported"] and not heard & demo["choosing"]
    of_new_voice = {name for name in base if name.startswith(NEW_VOICE.name)}
    assert of_new_voice == {f"{NEW_VOICE.name}-{round(100 * size)} sizes" for size in FAR_SIZES}


def test_the_base_is_trained_on_known_voices_and_on_resampled_ones() -> None:
    known, new = KNOWN_VOICES[0], NEW_VOICE
    assert sentence_split_digests.is_for_base(CorpusLine(known, "A text.", "train", 1.0))
    assert not sentence_split_digests.is_for_base(CorpusLine(known, "A text.", "held_out", 1.0))
    assert not sentence_split_digests.is_for_base(CorpusLine(new, "A text.", "train", 1.0))
    assert sentence_split_digests.is_for_base(CorpusLine(new, "A text.", "sizes", 1.0, FAR_SIZES[0]))


def test_a_changed_sentence_changes_the_digest() -> None:
    one, other = sentence_split_digests.describe_group(["A.", "B."]), sentence_split_digests.describe_group(["B.", "C."])
    assert one == sentence_split_digests.describe_group(["B.", "A.", "A."]) and one["sentences"] == 2
    assert one["sha256"] != other["sha256"]


def test_the_command_writes_the_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [CorpusLine(KNOWN_VOICES[0], "A text.", "train", 1.0), CorpusLine(NEW_VOICE, "Another text.", "train", 1.0)]
    monkeypatch.setattr(make_corpus, "plan_lines", lambda seed: lines)
    assert sentence_split_digests.main([str(tmp_path / "sentences.json")]) == 0
    written = json.loads((tmp_path / "sentences.json").read_text())
    assert written["base"] == {f"{KNOWN_VOICES[0].name} train": sentence_split_digests.describe_group(["A text."])}
    assert written["demo"] == COMMITTED["demo"]
