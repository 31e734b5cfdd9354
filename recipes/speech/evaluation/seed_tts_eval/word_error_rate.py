"""Word error rate of Seed-TTS-eval: the mean of the rates of the utterances, after the removal of punctuation.

As in `run_wer.py` and `average_wer.py` of https://github.com/BytedanceSpeech/seed-tts-eval (2024). It differs from the other WER of this
package: numbers and spellings are not normalized, a short text counts as much as a long one, and an utterance may have a rate above 1.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")
CHINESE_PUNCTUATION = (
    *((0xFF01, 0xFF0F), (0xFF1A, 0xFF20), (0xFF3B, 0xFF40), (0xFF5B, 0xFF64), (0x3000, 0x3003), (0x3008, 0x3011), (0x3014, 0x301F)),
    *((0x3030, 0x3030), (0x303E, 0x303F), (0x2013, 0x2014), (0x2018, 0x2019), (0x201B, 0x201F), (0x2026, 0x2027), (0xFE4F, 0xFE4F)),
    *((0xFE51, 0xFE51), (0xFE54, 0xFE54), (0xB7, 0xB7)),
)
"""First and last code point of each range of `zhon.hanzi.punctuation` (zhon 2.1.1)."""
APOSTROPHE = "'"
REMOVED = frozenset(
    {*string.punctuation, *(chr(code) for first, last in CHINESE_PUNCTUATION for code in range(first, last + 1))} - {APOSTROPHE}
)


@dataclass(frozen=True)
class UtteranceErrors:
    """The errors of one utterance."""

    text: str
    transcript: str
    rate: float
    """Errors / words of the text."""
    insertions: float
    deletions: float
    substitutions: float
    """Per part of the text between single spaces, empty parts included, as the public script counts them."""

    def format_line(self, wav: object) -> str:
        """The line of the public script's result file."""
        return f"{wav}\t{self.rate}\t{self.text}\t{self.transcript}\t{self.insertions}\t{self.deletions}\t{self.substitutions}"


def normalize(text: str, language: Language) -> str:
    """A text as it is compared: in Chinese, each character is a word."""
    text = "".join(character for character in text if character not in REMOVED).replace("  ", " ")  # one pass: three spaces become two
    return " ".join(text) if language == "zh" else text.lower()


def count_utterance_errors(text: str, transcript: str, language: Language) -> UtteranceErrors:
    """The errors of a transcript. `text` has at least one word after `normalize`."""
    import jiwer

    expected, found = normalize(text, language), normalize(transcript, language)
    counts, parts = jiwer.process_words(expected, found), len(expected.split(" "))
    return UtteranceErrors(
        text,
        transcript,
        rate=counts.wer,
        insertions=counts.insertions / parts,
        deletions=counts.deletions / parts,
        substitutions=counts.substitutions / parts,
    )


def average_rate(utterances: Sequence[UtteranceErrors]) -> float | None:
    """Mean rate of the utterances in percent, rounded to three digits; None without utterances."""
    return round(float(np.mean([one.rate for one in utterances])) * 100, 3) if utterances else None
