"""Intelligibility: what Whisper hears in a clip, against what it was to say.

Texts are compared after the field's normalisation (Radford et al. 2022, https://huggingface.co/papers/2212.04356, appendix C; whisper's own
code): spelling, numbers and contractions of English are made alike, elsewhere only case and punctuation go. Chinese and Japanese are
compared letter by letter, since they have no spaces to tell words by.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import soxr

from data_prep import faster, languages, manifest, transcribe, vad
from data_prep.audio import MASTER_RATE, SPEECH_RATE, Audio, Samples
from data_prep.device import choose_device
from data_prep.vad import Region
from finetune.errors import UserError

WITHOUT_SPACES = frozenset({"chinese", "japanese"})


@dataclass(frozen=True)
class Errors:
    """Substitutions, deletions and insertions of one text, and the length of what was to be said. Rates are sums of these, never means
    of rates, in which a short text would weigh like a long one."""

    words: int
    wrong_words: int
    characters: int
    wrong_characters: int


@dataclass(frozen=True)
class Heard:
    """What a recogniser made of one clip."""

    text: str
    problem: str = ""
    """Why the recogniser failed; then its text says nothing about the clip."""


def compare(said: str, heard: str, language: str) -> Errors | None:
    """Errors of `heard`; None if nothing is left of `said` after normalisation, so that there is nothing to compare with."""
    import jiwer

    expected, found = normal(said, language), normal(heard, language)
    if not expected:
        return None
    by_word, by_character = jiwer.process_words(expected, found), jiwer.process_characters(expected, found)
    return Errors(
        words=len(expected.split()),
        wrong_words=by_word.substitutions + by_word.deletions + by_word.insertions,
        characters=len(expected),
        wrong_characters=by_character.substitutions + by_character.deletions + by_character.insertions,
    )


def word_error_rate(model: Any, said: Iterable[tuple[str, Samples]], language: str) -> float:
    """Wrong words over all words of some clips: (what was to be said, samples [n] at 24 kHz)."""
    return share_of_wrong_words([(text, listen(model, samples, language).text) for text, samples in said], language)


def share_of_wrong_words(heard: Iterable[tuple[str, str]], language: str) -> float:
    """Over all words of some texts: (what was to be said, what was heard)."""
    errors = [one for text, found in heard if (one := compare(text, found, language))]
    return sum(one.wrong_words for one in errors) / sum(one.words for one in errors)


def normal(text: str, language: str) -> str:
    """The words of a text as they are compared, one space between them. `language`: lower-case English name, or `auto`."""
    return " ".join(_normaliser(language)(text).split())


@functools.cache
def _normaliser(language: str) -> Callable[[str], str]:
    from whisper.normalizers import BasicTextNormalizer, EnglishTextNormalizer

    if language == "english":
        return EnglishTextNormalizer()
    return BasicTextNormalizer(split_letters=language in WITHOUT_SPACES)


def check(name: str) -> None:
    """Raise `UserError` if no Whisper is called `name`; one of a published name is fetched. Loads nothing."""
    try:
        if faster.is_faster_whisper(name):
            faster.check_device(name, choose_device(None))
        else:
            transcribe.weights_digest(name)
        transcribe.fetch(name)
    except UserError as error:
        raise UserError(str(error).replace("--whisper", "--asr")) from None


def load(name: str) -> Any:
    """A Whisper, by its published name or from a .pt file."""
    return transcribe.load_whisper(name, choose_device(None))


def require_languages(model: Any, spoken: Iterable[str]) -> None:
    """Raise `UserError` for a language that these weights do not know."""
    for language in sorted(spoken):
        languages.whisper_code(None if language == manifest.AUTO else language, transcribe.is_multilingual(model))


def language_of(model: Any, language: str) -> str:
    """The language that texts of a row are compared in: the row's, or English if these weights know no other."""
    return "english" if language == manifest.AUTO and not transcribe.is_multilingual(model) else language


def listen(model: Any, samples: Samples, language: str) -> Heard:
    """`samples` [n] at 24 kHz. A language of `auto` is detected. Raises `UserError` for a language that these weights do not know."""
    if not len(samples):
        return Heard("")
    hearing = Audio(soxr.resample(samples, MASTER_RATE, SPEECH_RATE, quality="VHQ"), SPEECH_RATE)
    windows = vad.windows([Region(0, len(samples))], Audio(samples, MASTER_RATE))
    units = transcribe.transcribe(model, hearing, windows, None if language == manifest.AUTO else language)
    problem = next((unit.error for unit in units if unit.error), "")
    return Heard("".join(unit.text for unit in units).strip(), problem)
