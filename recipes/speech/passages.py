"""Long texts: split at sentences into passages of a length that speech models know from training, whose speech is joined again.

Must not import torch: `overtone generate --help` imports modules that import this one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import regex

from .interface import SpeechRequest, SpeechResult

LONGEST, SHORTEST = 20.0, 5.0
"""Bounds of a passage in estimated seconds: clips of training sets are rarely longer than 20 s, and shorter passages than 5 s would
separate the words of a sentence."""
SLOWEST = 2.0
"""A passage may take twice its estimate before it reaches the time limit: slow speakers, and long pauses."""
RATES = {"HAN": 5.2, "HIRAGANA": 7.8, "KATAKANA": 7.8, "HANGUL": 6.0}
"""Characters per second of scripts that write syllables: the syllable rates of Mandarin, Japanese and Korean in Pellegrino et al. 2011, A
cross-language perspective on speech information rate, Table 1 (Korean: Coupé et al. 2019)."""
LETTER_RATE, DIGIT_RATE = 14.0, 3.0
"""Letters with spaces and punctuation per second (English at 150 words per minute has 14), and digits, each of which is a word."""
ABBREVIATIONS = frozenset(
    (
        *("mr", "mrs", "ms", "dr", "prof", "st", "vs", "etc", "vol", "fig", "approx", "jr", "sr", "inc", "ltd", "co", "rev", "gen"),
        *("col", "capt", "bzw", "usw", "ca", "nr", "hr", "fr", "str", "abb", "sog", "mme", "mlle", "pp", "núm"),
        *("jan", "feb", "apr", "aug", "sept", "oct", "nov", "dec", "ex", "sig", "sra", "srta", "ud", "uds", "ee", "uu", "ул", "стр", "см"),
    )
)
"""Words whose point does not end a sentence, of English, German, French, Spanish, Italian and Russian."""
NUMBERED = frozenset(("no", "art", "mar", "jun", "jul", "sep"))
"""Words whose point does not end a sentence before a number."""
SENTENCE = regex.compile(r"(?:[.!?…؟۔।॥።፧။։]+[\"'»”’)\]]*(?=\s)|[。！？｡]+[」』”）]*)")
CLAUSE = regex.compile(r"(?:[;:,–—،؛፣၊](?=\s)|[，、；：]|\n)")
NEIGHBOURHOOD = 100
"""Characters on either side that decide whether a point ends a sentence: with all of them, a book would take hours."""
FADE_SECONDS = 0.01
PAUSE_SECONDS = 0.3
"""Silence between two passages, of which the end of the first counts: a usual pause between read sentences."""
SILENCE = 10 ** (-50 / 20)
"""Samples below -50 dBFS are silence."""


def estimate_seconds(text: str) -> float:
    """About how long a text takes to speak."""
    return sum(map(_estimate_character, text))


def _estimate_character(character: str) -> float:
    if character.isdigit():
        return 1 / DIGIT_RATE
    if character.isascii():
        return 1 / LETTER_RATE
    script = unicodedata.name(character, "").partition(" ")[0]
    return 1 / RATES.get({"CJK": "HAN"}.get(script, script), LETTER_RATE)


def split_text(text: str, max_seconds: float) -> list[str]:
    """The passages of a text, each at most `LONGEST` estimated seconds and half of the time limit `max_seconds`; in order, they have all
    its words. Boundaries are the ends of paragraphs, otherwise of sentences, otherwise clauses or lines, words or characters."""
    longest = min(LONGEST, max(SHORTEST, max_seconds / SLOWEST))
    if estimate_seconds(text) <= longest:
        return [text]
    passages: list[str] = []
    for paragraph in regex.split(r"\s*\n\s*\n\s*", text.strip()):
        passages.extend(_pack(_cut(paragraph, longest, 0), longest))
    return _pack_short(passages, longest)


def _cut(text: str, longest: float, level: int) -> list[str]:
    """Parts of at most `longest` estimated seconds, cut at the ends of sentences (level 0), clauses and lines (1), words (2) or characters
    (3), which accents belong to."""
    if estimate_seconds(text) <= longest:
        return [text]
    if level == 3:
        characters = regex.findall(r"\X", text)
        half = len("".join(characters[: len(characters) // 2])) or len(text) // 2
        return [*_cut(text[:half], longest, level), *_cut(text[half:], longest, level)]
    ends = [_sentence_ends, _clause_ends, _word_ends][level](text)
    starts = [0, *ends]
    parts = [text[start:end] for start, end in zip(starts, [*ends, len(text)], strict=True)]
    return [small for part in parts if part.strip() for small in _cut(part, longest, level + 1)]


def _sentence_ends(text: str) -> list[int]:
    return [match.end() for match in SENTENCE.finditer(text) if _is_sentence_end(text, match)]


def _is_sentence_end(text: str, match: regex.Match[str]) -> bool:
    """False after an abbreviation (also `p.m.`), an initial or an ordinal (`3. Mai`), and before a small letter."""
    after = text[match.end() : match.end() + NEIGHBOURHOOD].lstrip()
    if after[:1].islower():
        return False
    if match[0][:1] != "." or len(match[0]) > 1:
        return True
    word = regex.search(r"[\w.]*$", text[max(0, match.start() - NEIGHBOURHOOD) : match.start()])[0].lower()
    if word in ABBREVIATIONS or (word in NUMBERED and after[:1].isdigit()):
        return False
    is_short = all(len(part) == 1 and part.isalpha() for part in word.split("."))
    return not is_short and not (len(word) <= 2 and word.isdigit())


def _clause_ends(text: str) -> list[int]:
    return [match.end() for match in CLAUSE.finditer(text)]


def _word_ends(text: str) -> list[int]:
    return [match.start() for match in regex.finditer(r"\s+", text.rstrip())]


def _pack(parts: Sequence[str], longest: float) -> list[str]:
    """Neighbours together, in as few passages as fit, which are about equally long."""
    fewest = _pack_up_to(parts, longest)
    even = sum(map(estimate_seconds, fewest)) / len(fewest)
    limits = (even + (longest - even) * eighths / 8 for eighths in range(9))
    packings = (_pack_up_to(parts, limit) for limit in limits)
    return next((packed for packed in packings if len(packed) == len(fewest)), fewest)  # rounding may put the last limit below `longest`


def _pack_up_to(parts: Sequence[str], longest: float) -> list[str]:
    packed, seconds = [""], 0.0
    for part in parts:
        more = estimate_seconds(part)
        if packed[-1].strip() and seconds + more > longest:
            packed.append("")
            seconds = 0.0
        packed[-1] += part
        seconds += more
    return [each.strip() for each in packed if each.strip()]


def _pack_short(paragraphs: Sequence[str], longest: float) -> list[str]:
    """Short paragraphs, such as the lines of a dialogue, together with their neighbours: a passage alone would have no context."""
    packed: list[str] = []
    for part in paragraphs:
        if packed and estimate_seconds(packed[-1]) < SHORTEST and estimate_seconds(packed[-1] + part) <= longest:
            packed[-1] += f"\n\n{part}"
        else:
            packed.append(part)
    if len(packed) > 1 and estimate_seconds(packed[-1]) < SHORTEST and estimate_seconds(packed[-2] + packed[-1]) <= longest:
        packed[-2:] = [f"{packed[-2]}\n\n{packed[-1]}"]
    return packed


def split_request(request: SpeechRequest, max_seconds: float) -> list[SpeechRequest]:
    """The request once for each passage of its text."""
    return [replace(request, text=passage) for passage in split_text(request.text, max_seconds)]


class PassageJoiner:
    """Joins the speech of passages, chunk by chunk: their ends are faded, so that no click is heard, and separated by a pause.

    The first passage's beginning and the last one's end stay as they are; a single passage is not changed at all.
    """

    def __init__(self, rate: int, passages: int) -> None:
        """`rate`: in Hz. `passages`: their number."""
        self._rate, self._left = rate, passages - 1
        self._fade = max(1, round(FADE_SECONDS * rate))
        self._held = np.zeros(0, np.float32)
        self._silent = 0
        self._to_fade_in = 0

    def feed(self, wave: np.ndarray) -> np.ndarray:
        """The samples [n] float32 that are final after these, of the current passage."""
        wave = self._fade_in(wave)
        loud = np.flatnonzero(np.abs(wave) >= SILENCE)
        self._silent = len(wave) - 1 - int(loud[-1]) if len(loud) else self._silent + len(wave)
        if self._left == 0:
            return wave
        wave = np.concatenate([self._held, wave])
        ready, self._held = wave[: -self._fade], wave[-self._fade :]
        return ready

    def end_passage(self) -> np.ndarray:
        """Return what was held back of the passage, faded out, and the pause before the next; empty after the last one."""
        if self._left == 0:
            return np.zeros(0, np.float32)
        self._left -= 1
        tail = self._held * np.linspace(1, 0, len(self._held), dtype=np.float32)
        pause = max(0, round(PAUSE_SECONDS * self._rate) - self._silent)
        self._held, self._silent, self._to_fade_in = np.zeros(0, np.float32), 0, self._fade
        return np.concatenate([tail, np.zeros(pause, np.float32)])

    def _fade_in(self, wave: np.ndarray) -> np.ndarray:
        count = min(self._to_fade_in, len(wave))
        if not count:
            return wave
        begun = self._fade - self._to_fade_in
        self._to_fade_in -= count
        rise = np.arange(begun, begun + count, dtype=np.float32) / self._fade
        return np.concatenate([wave[:count] * rise, wave[count:]])


def join_results(results: Sequence[SpeechResult]) -> SpeechResult:
    """The speech of a text from that of its passages. It has ended if all of them have."""
    if len(results) == 1:
        return results[0]
    joiner = PassageJoiner(results[0].rate, len(results))
    waves = [part for result in results for part in (joiner.feed(result.wave), joiner.end_passage())]
    return SpeechResult(np.concatenate(waves), results[0].rate, all(result.ended for result in results))
