"""Tests of `overtone.recipes.speech.passages`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.recipes.speech.interface import SpeechRequest, SpeechResult
from overtone.recipes.speech.passages import LONGEST, SHORTEST, PassageJoiner, estimate_seconds, join_results, split_request, split_text

RATE = 24000
STORY = 'Dr. Smith went to Washington on 3. Mai 1999. He saw 3.5 birds! "Really?" she said. "Yes," he answered, and laughed. '


def test_a_short_text_is_one_passage_as_it_is() -> None:
    assert split_text(" It is never late!\n\nNever. ", 60) == [" It is never late!\n\nNever. "]


def test_a_long_text_is_cut_at_the_ends_of_sentences() -> None:
    passages = split_text(STORY * 15, 60)
    assert len(passages) == 9 and " ".join(passages) == (STORY * 15).strip()
    assert all(passage.endswith((".", "!", '?"')) and passage[0] in 'DH"' for passage in passages)
    assert not any(passage.endswith(("Dr.", "3.")) for passage in passages)
    assert max(map(len, passages)) < 1.5 * min(map(len, passages)), "about equally long"


def test_paragraphs_are_boundaries() -> None:
    one, two = STORY, "The second paragraph. " * 12
    assert split_text(f"{one}\n\n{two}", 60) == [one.strip(), two.strip()]
    dialogue = "\n\n".join(["Yes.", "No.", "Really? I do not believe that at all, my friend."] * 9)
    assert all(estimate_seconds(passage) > 2 for passage in split_text(dialogue, 60)), "no single word is a passage"
    assert split_text(f"{two}\n\n{one}\n\nThe end.", 60) == [two.strip(), f"{one.strip()}\n\nThe end."]


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("今天天气很好，我们去公园玩。" * 30, "。"),
        ("Это очень длинный текст, который нужно разделить. " * 12, "."),
        ("word and, " * 60, ","),
        ("word " * 100, "d"),
        ("a" * 900, "a"),
        ("12345 " * 60, "5"),
        ("هل تعرف أين يقع المتحف؟ " * 40, "؟"),
        ("یہ ایک لمبا جملہ ہے۔ " * 40, "۔"),
        ("यह एक लंबा वाक्य है जिसे बाँटा जाना चाहिए। " * 20, "।"),
        ("ይህ ረጅም ዓረፍተ ነገር ነው። " * 30, "።"),
        ("ဤသည်မှာ ရှည်လျားသော ဝါကျဖြစ်သည်။ " * 30, "။"),
        ("a point that none of the lines has at its end\r\n" * 20, "end"),
        ("We met on Jan. 3 at 5 p.m. Eastern time, see No. 12 of the U.S. Army, and the EE. UU. there. " * 8, "there."),
        ("e\u0301" * 500, "e\u0301"),
        ("e" + "\u0301" * 900, "\u0301"),
    ],
)
def test_other_scripts_and_texts_without_sentences_are_split_too(text: str, ends: str) -> None:
    passages = split_text(text, 60)
    assert len(passages) > 1 and all(passage.endswith(ends) and estimate_seconds(passage) <= LONGEST for passage in passages)
    assert "".join("".join(passages).split()) == "".join(text.split())


@given(text=st.text(alphabet="abc XY.!?\n,;0漢あ ", max_size=1500), seconds=st.floats(0.1, 1000))
def test_no_word_is_lost_and_no_passage_too_long(text: str, seconds: float) -> None:
    passages = split_text(text, seconds)
    assert "".join("".join(passages).split()) == "".join(text.split())
    assert all(estimate_seconds(passage) <= min(LONGEST, max(SHORTEST, seconds / 2)) + 0.2 for passage in passages)


def test_the_time_for_a_book_grows_with_its_length() -> None:
    """Quadratic time would be minutes: the test's time limit ends it."""
    book = "They met at half past nine in the old house. " * 20_000
    assert "".join(split_text(book, 60)).count(".") == 20_000


def test_a_short_time_limit_makes_shorter_passages() -> None:
    assert len(split_text(STORY * 15, 12)) > 2 * len(split_text(STORY * 15, 60))
    request = SpeechRequest(STORY * 15, "me", "english")
    assert {(each.speaker, each.language) for each in split_request(request, 60)} == {("me", "english")}


def make_tone(seconds: float, silence: float = 0.0) -> np.ndarray:
    tone = 0.5 * np.cos(2 * np.pi * 440 * np.arange(round(seconds * RATE)) / RATE)
    return np.concatenate([tone, np.zeros(round(silence * RATE))]).astype(np.float32)


def test_passages_are_joined_without_a_click_and_with_a_pause() -> None:
    first, second = make_tone(1.0), make_tone(1.0)
    joined = join_results([SpeechResult(first, RATE, True), SpeechResult(second, RATE, True)]).wave
    assert len(joined) == len(first) + len(second) + round(0.3 * RATE)
    steepest = np.abs(np.diff(first)).max()
    assert np.abs(np.diff(joined)).max() <= steepest * 1.01, "a cut tone would step by half of full scale"
    assert np.array_equal(joined[: RATE - 240], first[:-240]) and np.array_equal(joined[-RATE + 240 :], second[240:])


def test_the_silence_of_a_passage_is_part_of_the_pause() -> None:
    results = [SpeechResult(make_tone(1.0, silence), RATE, True) for silence in (0.2, 0.5, 0.0)]
    assert len(join_results(results).wave) == round((1.3 + 1.5 + 1.0) * RATE)
    one = SpeechResult(make_tone(1.0), RATE, False)
    assert join_results([one]) is one and not join_results([results[0], one]).ended


@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_chunks_of_any_size_give_the_same_samples(sizes: list[int]) -> None:
    waves = [make_tone(0.05, 0.02), make_tone(0.003), make_tone(0.04)]
    whole = join_results([SpeechResult(wave, RATE, True) for wave in waves]).wave
    joiner, parts = PassageJoiner(RATE, 3), list[np.ndarray]()
    for wave in waves:
        cuts = np.cumsum(sizes)[np.cumsum(sizes) < len(wave)]
        parts += [*map(joiner.feed, np.split(wave, cuts)), joiner.end_passage()]
    assert np.array_equal(np.concatenate(parts), whole)
