"""Speaking rate of a clip: the characters of its text as it is spoken, for each second of speech."""

from __future__ import annotations

import re

from overtone.data_prep.number_words import spell_numbers

PLAUSIBLE_RATES = {"chinese": (1.5, 12.0), "japanese": (2.0, 20.0), "korean": (1.5, 15.0)}
"""Language → plausible characters per second (minimum, maximum). In these scripts a syllable is one character; in others it is two or
three."""
OTHER_PLAUSIBLE_RATES = (4.0, 30.0)
SPELT = re.compile(r"(?<![^\W\d_])[B-DF-HJ-NP-TV-XZ]+(?![^\W\d_])")
"""Capital letters without a vowel: each is spoken as its name."""
LETTER_NAME_CHARACTERS = 3
LEAST_SECONDS = 0.01


def measure_speaking_rate(text: str, seconds: float, language: str) -> float:
    """Return the characters per second of `text`, for so many seconds of speech. "40" counts as its English word, which is about as long as
    that of other languages with an alphabet; in Chinese, Japanese and Korean a digit is one character. Letters that are spelt count as
    names."""
    if language not in PLAUSIBLE_RATES:
        text = SPELT.sub(lambda found: len(found[0]) * LETTER_NAME_CHARACTERS * "x", spell_numbers(text))
    return round(len(text) / max(seconds, LEAST_SECONDS), 2)


def find_plausible_rates(language: str) -> tuple[float, float]:
    """Return the plausible characters per second of a language (minimum, maximum)."""
    return PLAUSIBLE_RATES.get(language, OTHER_PLAUSIBLE_RATES)
