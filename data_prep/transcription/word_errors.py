"""Word error rate between the text of a clip and what a Whisper model transcribes there."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence

from overtone.data_prep.manifest import AUTO
from overtone.data_prep.segmentation.clip_segmentation import TextUnit

WITHOUT_SPACES = ("chinese", "japanese", "thai")
"""Languages whose words are not separated: every character counts as a word."""


def measure_clip_errors(text: str, start: int, stop: int, transcribed: Sequence[TextUnit], language: str) -> float | None:
    """Word error rate against the words of `transcribed` whose middle is in the samples `start:stop`, after Whisper's normalisation; None
    if the text is then empty, or Whisper failed there. Above 1 if more words are transcribed than written. With `language` AUTO, the one
    that Whisper detected there counts."""
    import jiwer

    inside = [unit for unit in transcribed if start <= (unit.start + unit.stop) // 2 < stop]
    detected = Counter(unit.heard.language for unit in inside if unit.heard).most_common(1)
    if language == AUTO and detected:
        language = detected[0][0]
    expected = _normalize(text, language)
    if not expected or any(unit.error for unit in transcribed if unit.start < stop and unit.stop > start):
        return None
    return round(float(jiwer.wer(expected, _normalize("".join(unit.text for unit in inside), language))), 3)


def _normalize(text: str, language: str) -> str:
    return " ".join(_load_normalizer(language)(text).split())


@functools.cache
def _load_normalizer(language: str) -> Callable[[str], str]:
    from whisper.normalizers import BasicTextNormalizer, EnglishTextNormalizer

    return EnglishTextNormalizer() if language == "english" else BasicTextNormalizer(split_letters=language in WITHOUT_SPACES)
