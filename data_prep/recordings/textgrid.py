"""TextGrid files of Praat: the intervals of one tier.

Like Praat, the parser reads the numbers and quoted texts of a file and ignores the words around them, so the long and the short form are
one (https://www.fon.hum.uva.nl/praat/manual/TextGrid_file_formats.html). praatio is not used: it drops the last interval of a short file
that lacks a final line break, drops the sign of times, and fails at `1e-05`, which Praat writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from overtone.data_prep.recordings.timed_cues import Cue, ParsedCues
from overtone.finetune.errors import UserError, format_count

SUFFIX = ".textgrid"
TOKEN = re.compile(r'"((?:[^"]|"")*)"|(?<![^\s])([-+]?\d[\d.]*(?:[eE][-+]?\d+)?)(?![^\s])|<(exists|absent)>|![^\n]*')
"""A quoted text, a free-standing number, a flag, or a comment."""
PAUSES = frozenset({"", "sil", "sp", "pau", "#", "<sil>", "<eps>", "<p>", "<p:>", "<usb>", "<nib>", "xxx"})
PHONES = re.compile(r"phon|segment|\bmau\b|sampa|ipa\b|syll|kan\b|tone|break|pitch", re.IGNORECASE)
WORDS = re.compile(r"word|\bort\b|\bmots?\b|wort|wörter|palabra|parol[ae]|слов|単語", re.IGNORECASE)
PHRASES = re.compile(r"utt|sent|phras|text|trans|trn|turn|satz|frase|énonc|фраз|предлож|発話", re.IGNORECASE)
MOST_LETTERS_OF_PHONES = 2.5
"""Mean length of labels up to which a tier without a known name holds phones."""
WORDS_OF_PHRASE = 1.5
"""Mean number of words of a label up to which a tier without a known name holds single words."""


class LabelledInterval(NamedTuple):
    """An interval with text; times in seconds."""

    number: int
    start: float
    end: float
    text: str


class Tier(NamedTuple):
    """A tier of intervals, without those that are pauses."""

    name: str
    intervals: tuple[LabelledInterval, ...]

    @property
    def kind(self) -> str:
        """`phones`, `words` or `phrases`, by its name, or else by its labels."""
        for kind, pattern in (("words", WORDS), ("phones", PHONES), ("phrases", PHRASES)):
            if pattern.search(self.name):
                return kind
        letters = sum(len(one.text) for one in self.intervals) / max(1, len(self.intervals))
        words = sum(len(one.text.split()) for one in self.intervals) / max(1, len(self.intervals))
        ideographs = any("\u3040" <= letter <= "\u9fff" or "\uac00" <= letter <= "\ud7a3" for one in self.intervals for letter in one.text)
        if letters <= MOST_LETTERS_OF_PHONES and not ideographs:
            return "phones"
        return "words" if words <= WORDS_OF_PHRASE and len(self.intervals) > 3 and not ideographs else "phrases"


def parse_textgrid(content: str, path: Path) -> ParsedCues:
    """Return the intervals of the tier with the text: of phrases, else of words. Raises `UserError` for a file that is cut off, and if
    several tiers hold the words of several speakers."""
    tiers = [tier for tier in read_tiers(content, path) if tier.intervals]
    chosen: list[Tier] = []
    for kind in ("phrases", "words"):
        chosen = chosen or [tier for tier in tiers if tier.kind == kind]
    if not chosen:
        names = ", ".join(repr(tier.name) for tier in tiers) or "none"
        raise UserError(f"{path} has no tier with words or phrases (tiers with text: {names}); name the one with the spoken text 'text'")
    if len({_list_texts(tier) for tier in chosen}) > 1:
        names = ", ".join(repr(tier.name) for tier in chosen)
        raise UserError(
            f"{path}: several tiers hold text ({names}); keep the one with the words of the speaker, or call the others 'phones'"
        )
    tier = chosen[0]
    cues = tuple(Cue(f"{path}: interval {one.number} of tier {tier.name!r}", one.start, one.end, one.text) for one in tier.intervals)
    note = (f"the tier {tier.name!r} of {format_count(len(tiers), 'tier')} with text is used",) if len(tiers) > 1 else ()
    return ParsedCues(cues, words=tier.kind == "words", notes=note)


def read_tiers(content: str, path: Path) -> list[Tier]:
    """Return all tiers of intervals. Raises `UserError` if the file is no TextGrid or has fewer intervals than it says."""
    tokens = _split_tokens(content)
    try:
        header = [next(tokens), next(tokens)]
        if not (header[0] == "ooTextFile" and str(header[1]).startswith("TextGrid")):
            raise UserError(f"{path}:1: expected a TextGrid of Praat in text form; save it with `Save as text file...`")
        _take_number(tokens), _take_number(tokens)
        if next(tokens) == "<absent>":
            return []
        return [tier for _ in range(int(_take_number(tokens))) if (tier := _read_tier(tokens)) is not None]
    except (StopIteration, TypeError) as error:
        raise UserError(f"{path}: it ends before the last of its tiers, or is damaged; save it again with Praat") from error


def _read_tier(tokens: Iterator[str | float]) -> Tier | None:
    """Return the next tier; None for one of points."""
    kind, name = _take_text(tokens), _take_text(tokens)
    _take_number(tokens), _take_number(tokens)
    size = int(_take_number(tokens))
    if kind != "IntervalTier":
        for _ in range(size):
            _take_number(tokens), _take_text(tokens)
        return None
    intervals = [
        LabelledInterval(number, _take_number(tokens), _take_number(tokens), _take_text(tokens).strip()) for number in range(1, size + 1)
    ]
    return Tier(name, tuple(one for one in intervals if one.text.lower() not in PAUSES))


def _split_tokens(content: str) -> Iterator[str | float]:
    for found in TOKEN.finditer(content):
        if found[1] is not None:
            yield found[1].replace('""', '"')
        elif found[2]:
            try:
                yield float(found[2])
            except ValueError:
                continue
        elif found[3]:
            yield f"<{found[3]}>"


def _take_number(tokens: Iterator[str | float]) -> float:
    value = next(tokens)
    if not isinstance(value, float):
        raise TypeError("expected a number")
    return value


def _take_text(tokens: Iterator[str | float]) -> str:
    value = next(tokens)
    if not isinstance(value, str):
        raise TypeError("expected a text")
    return value


def _list_texts(tier: Tier) -> str:
    """Return the text of a tier, to compare it with another."""
    return " ".join(one.text.casefold() for one in tier.intervals)
