"""Word error rate between the text of a clip and what a Whisper model transcribes there."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.manifest import AUTO
from overtone.data_prep.segmentation.clip_segmentation import TextUnit

WITHOUT_SPACES = frozenset({"cantonese", "chinese", "japanese", "lao", "myanmar", "thai"})
"""Languages whose words are not separated, as openai-whisper's tokenizer lists them: every character counts as a word."""
ELLIPSES, APOSTROPHES = re.compile(r"\.{2,}|…"), re.compile(r"(?<=\w)[’‘ʼ＇](?=\w)")
"""Whisper's normalisation for English misreads both: it leaves a "." of "..." as a word, and makes two words of "don’t"."""
BRACKETS = re.compile(r"[()\[\]]")
EDGE_TOLERANCE = MASTER_RATE * 2 // 5
"""Error of Whisper's word times in samples: a word this near to an end of the clip counts only if it is in the text."""


def measure_clip_errors(text: str, start: int, stop: int, transcribed: Sequence[TextUnit], language: str) -> float | None:
    """Return the word error rate against the words of `transcribed` whose middle is in the samples `start:stop`, after Whisper's
    normalisation; None if the text is then empty, or Whisper failed there. Above 1 if more words are transcribed than written. With
    `language` AUTO, the one that Whisper detected there counts. Words are equal if only the spaces between them differ ("X-ray",
    "xray")."""
    near = [unit for unit in transcribed if start - EDGE_TOLERANCE <= (unit.start + unit.stop) // 2 < stop + EDGE_TOLERANCE]
    detected = Counter(unit.heard.language for unit in near if unit.heard).most_common(1)
    if language == AUTO and detected:
        language = detected[0][0]
    readings = list_readings(text, language)
    if not readings or any(unit.error for unit in transcribed if unit.start < stop and unit.stop > start):
        return None
    first = sum((unit.start + unit.stop) // 2 < min(start + EDGE_TOLERANCE, (start + stop) // 2) for unit in near)
    last = sum((unit.start + unit.stop) // 2 >= max(stop - EDGE_TOLERANCE, (start + stop) // 2) for unit in near)
    found = ("".join(unit.text for unit in near[before : len(near) - after]) for before in range(first + 1) for after in range(last + 1))
    spoken = {normalize(one, language) for one in found}
    return min(_compute_rate(reading.split(), one.split()) for reading in readings for one in spoken)


def _compute_rate(expected: list[str], found: list[str]) -> float:
    """Return the errors for each expected word. A stretch of differing words with the same letters has no error."""
    import jiwer

    errors = 0
    parts = jiwer.process_words(" ".join(expected), " ".join(found)).alignments[0]
    for is_equal, chunks in itertools.groupby(parts, key=lambda part: part.type == "equal"):
        stretch = list(chunks)
        own = expected[stretch[0].ref_start_idx : stretch[-1].ref_end_idx]
        other = found[stretch[0].hyp_start_idx : stretch[-1].hyp_end_idx]
        if not is_equal and "".join(own) != "".join(other):
            errors += sum(max(part.ref_end_idx - part.ref_start_idx, part.hyp_end_idx - part.hyp_start_idx) for part in stretch)
    return round(errors / len(expected), 3)


def list_readings(text: str, language: str) -> list[str]:
    """Return the normalised words of a text that is spoken: without those in brackets, and with them if there are any; none for a text
    without words outside of brackets. Whisper's normalisation takes what is in brackets for sounds, as in "(applause)", but most texts have
    words in theirs, as in "one of them (the old one) fell"."""
    plain = normalize(text, language)
    return [*dict.fromkeys((plain, normalize(BRACKETS.sub(" ", text), language)))] if plain else []


def normalize(text: str, language: str) -> str:
    """Return the normalised words of a text, separated by one space. `language`: English name in lower case, or `auto`."""
    text = APOSTROPHES.sub("'", ELLIPSES.sub(" ", text))
    return " ".join(_load_normalizer(language)(text).split())


@functools.cache
def _load_normalizer(language: str) -> Callable[[str], str]:
    from whisper.normalizers import BasicTextNormalizer, EnglishTextNormalizer

    return EnglishTextNormalizer() if language == "english" else BasicTextNormalizer(split_letters=language in WITHOUT_SPACES)
