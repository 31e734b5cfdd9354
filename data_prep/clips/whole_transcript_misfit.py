"""Checks, by their lengths and in any language, whether the texts of all clips of a recording fit its speech: a reader has a fairly
constant speaking rate.

A Whisper that does not understand and a table whose texts belong to other files give texts whose lengths hardly depend on the sound.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from overtone.data_prep.number_words import spell_numbers

LEAST_CLIPS = 20
"""Minimum number of clips: with fewer, the misfit of lengths depends on chance."""
LEAST_SECONDS = 1.0
"""Minimum speech of a clip that is counted: voice activity detection adds tenths of a second."""
STEADY_SECONDS = 10.0
"""Duration of speech above which speaking rates do not get steadier."""
SYLLABLE_LETTERS = 2.5
"""Letters that one character of a syllabic script counts for."""
SYLLABIC = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL")
MOST_MISFIT = 0.55
"""Largest misfit of texts that are trusted. Measured on 437 clips of English and French telephone prompts in 17 recordings: correct texts
have at most 0.43, texts of other clips of the recording at least 0.91, a Whisper of 148 words at least 0.62 (0.88 with 20 clips)."""
LEAST_REPEATS, MOST_STRETCH = 5, 2.0


def count_letters(text: str) -> float:
    """Return the length of a text as it is spoken, in letters of an alphabet; punctuation and spaces do not count, and numbers count as
    their English words."""
    return sum(_weigh_character(one) for one in spell_numbers(unicodedata.normalize("NFKC", text)))


def measure_misfit(clips: Sequence[tuple[float, str]]) -> float | None:
    """Return the misfit of texts and speech: mean over clips of |log(rate / median rate)| × √(speech), for (seconds of speech, text) of
    clips.

    The weight makes clips of all lengths comparable, since the rate of a long clip varies less. None with fewer than 20 usable clips.
    """
    known = [(seconds, letters) for seconds, text in clips if seconds >= LEAST_SECONDS and (letters := count_letters(text)) > 0]
    if len(known) < LEAST_CLIPS:
        return None
    seconds, letters = np.asarray(known).T
    rates = np.log(letters / seconds)
    return round(float((np.abs(rates - np.median(rates)) * np.sqrt(np.minimum(seconds, STEADY_SECONDS))).mean()), 3)


def _weigh_character(one: str) -> float:
    if not one.isalpha():
        return 0.0
    return SYLLABLE_LETTERS if unicodedata.name(one, "").startswith(SYLLABIC) else 1.0


def find_unlikely_repeats(clips: Sequence[tuple[str, float, str]]) -> set[str]:
    """Return the ids of clips with a sentence that five or more clips have although their speech is not equally long (90 % quantile more
    than twice the 10 % quantile): nobody says one sentence at such different rates. `clips`: (id, seconds of speech, text)."""
    groups: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for identity, seconds, text in clips:
        if seconds >= LEAST_SECONDS:
            groups[" ".join(text.casefold().split())].append((identity, seconds))
    unlikely = set()
    for group in groups.values():
        low, high = np.quantile([seconds for _, seconds in group], [0.1, 0.9])
        if len(group) >= LEAST_REPEATS and high > MOST_STRETCH * low:
            unlikely |= {identity for identity, _ in group}
    return unlikely
