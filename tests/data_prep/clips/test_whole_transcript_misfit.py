"""Lengths of texts against the speech under them."""

from __future__ import annotations

import random

import pytest

from overtone.data_prep.clips.whole_transcript_misfit import MOST_MISFIT, count_letters, find_unlikely_repeats, measure_misfit


def test_letters_digits_and_syllables_count_as_they_are_spoken() -> None:
    assert count_letters("Press 1, please!") == 5 + 3 + 6
    assert count_letters("二つ") == 5.0
    assert count_letters("“…”") == 0


def make_clips(chance: random.Random, letters: str) -> list[tuple[float, str]]:
    """Thirty clips of 1 to 12 s at 14 letters per second, or in a syllabic script at 5.6, with a tenth of deviation."""
    seconds = [chance.uniform(1.0, 12.0) for _ in range(30)]
    rate = 14 if letters == "a" else 5.6
    return [(one, letters * round(one * rate * chance.uniform(0.85, 1.15))) for one in seconds]


@pytest.mark.parametrize("letters", ["a", "か"])
def test_texts_of_other_clips_do_not_fit(letters) -> None:
    clips = make_clips(random.Random(0), letters)
    texts = [text for _, text in clips]
    moved = [(seconds, text) for (seconds, _), text in zip(clips, texts[1:] + texts[:1], strict=True)]
    assert measure_misfit(clips) < MOST_MISFIT / 2
    assert measure_misfit(moved) > MOST_MISFIT


def test_few_clips_and_short_ones_say_nothing() -> None:
    clips = make_clips(random.Random(0), "a")
    assert measure_misfit(clips[:19]) is None
    assert measure_misfit([(0.5, text) for _, text in clips]) is None
    assert measure_misfit(clips[:20]) is not None


def test_one_sentence_at_very_different_lengths_is_unlikely() -> None:
    seconds = [2.0, 2.1, 4.9, 5.0, 2.0]
    stretched = [(str(index), one, "Thanks for watching") for index, one in enumerate(seconds)]
    steady = [(f"s{index}", 2.0 + 0.1 * index, "Hey computer") for index in range(9)]
    assert find_unlikely_repeats([*stretched, *steady]) == {"0", "1", "2", "3", "4"}
    assert find_unlikely_repeats(stretched[:4]) == set()
