"""Intelligibility: word and character error rates (WER, CER) of Whisper's transcript of a clip against its text.

Texts are compared after Whisper's normalisation (Radford et al. 2022, https://huggingface.co/papers/2212.04356, appendix C; whisper's own
code), after two repairs of what it misreads (`word_errors.normalize`). For English it unifies spelling, numbers and contractions; for other
languages it removes case and punctuation. Languages without spaces between words are compared character by character. Words in brackets may
be spoken or not: the reading with fewer errors counts (`word_errors.list_readings`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import soxr

from overtone.data_prep import manifest
from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio, Samples
from overtone.data_prep.parallel.devices import choose_device
from overtone.data_prep.segmentation import vad
from overtone.data_prep.segmentation.clip_segmentation import TextUnit
from overtone.data_prep.segmentation.vad import Region
from overtone.data_prep.transcription import demo_whisper, faster_whisper_engine, whisper_engine, whisper_languages
from overtone.data_prep.transcription.word_errors import list_readings, normalize
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files

if TYPE_CHECKING:
    import jiwer

RETRY_PAUSES = (0.3, 1.0)
"""Seconds of silence before a clip that is transcribed again."""


@dataclass(frozen=True)
class ErrorCounts:
    """Substitutions, deletions and insertions in one text, and the length of the expected text. Rates are computed from sums of these: in a
    mean of rates, a short text would have the weight of a long one."""

    words: int
    wrong_words: int
    characters: int
    wrong_characters: int


@dataclass(frozen=True)
class AlignedWord:
    """A word of a normalised transcript beside the expected one."""

    expected: str
    """Empty: an inserted word."""
    transcribed: str
    """Empty: a missing word."""

    @property
    def wrong(self) -> bool:
        return self.expected != self.transcribed


@dataclass(frozen=True)
class Recognizer:
    """A loaded Whisper of either engine."""

    model: Any
    retry_below: float = -np.inf
    """A transcript with a lower mean log-probability is unsure: the clip is transcribed again with `RETRY_PAUSES`, and the most probable
    transcript counts. For whisper-demo-en, which may miss a whole sentence that starts at one place of its window and not at another."""


@dataclass(frozen=True)
class Transcription:
    """A recogniser's output for one clip."""

    text: str
    problem: str = ""
    """The reason why the recogniser failed; the text is then unusable."""
    log_probability: float = -np.inf
    """Mean over the tokens, of the window where it is lowest; -inf without a word."""
    again: bool = False
    """True if it is the most probable of several, since the first one was unsure."""


def count_errors(expected: str, transcript: str, language: str) -> ErrorCounts | None:
    """The errors of a transcript; None if the expected text is empty after normalisation."""
    import jiwer

    by_word = _compare_words(expected, transcript, language)
    if by_word is None:
        return None
    expected, transcript = (" ".join(words) for (words,) in (by_word.references, by_word.hypotheses))
    by_character = jiwer.process_characters(expected, transcript)
    return ErrorCounts(
        words=len(expected.split()),
        wrong_words=_count_wrong_words(by_word),
        characters=len(expected),
        wrong_characters=by_character.substitutions + by_character.deletions + by_character.insertions,
    )


def align_words(expected: str, transcript: str, language: str) -> list[AlignedWord]:
    """The words of both texts after normalisation, in the alignment that WER counts; empty if the expected text is."""
    found, aligned = _compare_words(expected, transcript, language), list[AlignedWord]()
    if found is None:
        return []
    for part in found.alignments[0]:
        right = found.references[0][part.ref_start_idx : part.ref_end_idx]
        own = found.hypotheses[0][part.hyp_start_idx : part.hyp_end_idx]
        aligned += [AlignedWord(*pair) for pair in zip_longest(right, own, fillvalue="")]
    return aligned


def _compare_words(expected: str, transcript: str, language: str) -> jiwer.WordOutput | None:
    """Compare with the reading of the expected text that has the fewest errors; None if it has no words."""
    import jiwer

    transcript = normalize(transcript, language)
    outputs = [jiwer.process_words(reading, transcript) for reading in list_readings(expected, language)]
    return min(outputs, key=_count_wrong_words, default=None)


def _count_wrong_words(compared: jiwer.WordOutput) -> int:
    return int(compared.substitutions + compared.deletions + compared.insertions)


def transcripts_wer(transcripts: Iterable[tuple[str, str]], language: str) -> float:
    """WER of transcripts, given as pairs of (expected text, transcript)."""
    errors = [one for text, transcript in transcripts if (one := count_errors(text, transcript, language))]
    return sum(one.wrong_words for one in errors) / sum(one.words for one in errors)


def check_whisper(name: str, option: str = "--asr") -> None:
    """Raises `UserError`, in the name of the flag or config key, if there is no Whisper model with that name. Downloads a published one,
    without loading it."""
    try:
        if faster_whisper_engine.is_faster_whisper(name):
            faster_whisper_engine.check_device(name, choose_device(None))
        else:
            whisper_engine.digest_weights(name)
        whisper_engine.fetch_weights(name)
    except UserError as error:
        raise UserError(str(error).replace("--whisper", option)) from None


def digest_whisper(name: str) -> str:
    """SHA-256 of the weights of a Whisper model that `check_whisper` has accepted."""
    if faster_whisper_engine.is_faster_whisper(name):
        return files.digest(faster_whisper_engine.fetch_weights(name))
    return whisper_engine.digest_weights(name)


def load_whisper(name: str) -> Recognizer:
    """Load a Whisper model by its published name or from a .pt file."""
    model = whisper_engine.load_whisper(name, choose_device(None))
    return Recognizer(model, demo_whisper.RETRY_BELOW) if demo_whisper.is_demo_name(name) else Recognizer(model)


def describe_recognizer(name: str) -> str:
    """Whose transcripts the figures are, for readers: the name without its folder, and the origin of the demo's Whisper."""
    return f"{name}, {demo_whisper.ORIGIN}" if demo_whisper.is_demo_name(name) else Path(name).name


def name_judge(name: str) -> str:
    """The sentence that names the recognizer beside word error rates, which those of another one cannot be compared with."""
    return f"WER and CER are by the transcripts of {describe_recognizer(name)}."


def describe_retry(name: str) -> dict[str, Any]:
    """Return what affects transcripts besides the weights of the Whisper with that name: empty unless it transcribes unsure clips again."""
    return {"retry_below": demo_whisper.RETRY_BELOW, "retry_pauses": RETRY_PAUSES} if demo_whisper.is_demo_name(name) else {}


def require_languages(recognizer: Recognizer, spoken: Iterable[str]) -> None:
    """Raises `UserError` for a language that the model does not support."""
    for language in sorted(spoken):
        whisper_languages.find_whisper_code(
            None if language == manifest.AUTO else language, whisper_engine.is_multilingual(recognizer.model)
        )


def choose_language(recognizer: Recognizer, language: str) -> str:
    """The language in which a row is transcribed and compared: the row's own, or English for `auto` if the model supports no other."""
    return "english" if language == manifest.AUTO and not whisper_engine.is_multilingual(recognizer.model) else language


def transcribe(recognizer: Recognizer, samples: Samples, language: str) -> Transcription:
    """Transcribe `samples` [n] at 24 kHz; `auto` detects the language. Raises `UserError` for an unsupported language."""
    return transcribe_clips(recognizer, [samples], language)[0]


def transcribe_clips(recognizer: Recognizer, clips: Sequence[Samples], language: str) -> list[Transcription]:
    """As `transcribe`, several clips at once, which is faster with openai-whisper; its transcripts may differ by rounding."""
    found = _transcribe_once(recognizer.model, clips, language)
    for number, (samples, first) in enumerate(zip(clips, found, strict=True)):
        if not len(samples) or first.log_probability >= recognizer.retry_below:
            continue
        padded = [np.concatenate([np.zeros(round(seconds * MASTER_RATE), samples.dtype), samples]) for seconds in RETRY_PAUSES]
        every = [first, *_transcribe_once(recognizer.model, padded, language)]
        found[number] = replace(max(every, key=lambda one: (not one.problem, one.log_probability)), again=True)
    return found


def _transcribe_once(model: Any, clips: Sequence[Samples], language: str) -> list[Transcription]:
    inputs = [
        (
            Audio(soxr.resample(samples, MASTER_RATE, SPEECH_RATE, quality="VHQ"), SPEECH_RATE),
            vad.make_windows([Region(0, len(samples))], Audio(samples, MASTER_RATE)) if len(samples) else [],
        )
        for samples in clips
    ]
    spoken = whisper_engine.transcribe_clips(model, inputs, None if language == manifest.AUTO else language)
    return [_join_units(units) for units in spoken]


def _join_units(units: Sequence[TextUnit]) -> Transcription:
    problem = next((unit.error for unit in units if unit.error), "")
    sure = min((unit.heard.avg_logprob for unit in units if unit.heard is not None), default=-np.inf)
    return Transcription("".join(unit.text for unit in units).strip(), problem, sure)
