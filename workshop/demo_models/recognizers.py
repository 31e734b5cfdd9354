"""The speech recognizers that measure word error rates of the demo models: Whisper models by name, and pocketsphinx.

whisper-demo-en was also trained on output of an earlier codec-demo, as a real Whisper was on compressed speech; pocketsphinx was not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from overtone.data_prep.audio.waveform import Samples
from overtone.recipes.speech.evaluation import intelligibility
from workshop.demo_models import pocketsphinx_recognizer

SpokenTexts = Sequence[tuple[str, Samples]]
"""(text, samples [n] at 24 kHz) for each sentence."""
Transcriber = Callable[[Samples], str]
"""Samples [n] at 24 kHz of a sentence → its transcript."""
WordErrorMeasure = Callable[[SpokenTexts], float]
"""Returns the word error rate of sentences, a fraction."""


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add `--asr`, which may be given more than once."""
    parser.add_argument(
        "--asr",
        action="append",
        default=[],
        metavar="RECOGNIZER",
        help=f"speech recognizer that measures the WER: a Whisper, by name or .pt file, or {pocketsphinx_recognizer.NAME}",
    )


def load_recognizers(names: Iterable[str]) -> dict[str, WordErrorMeasure]:
    """Name → measure, with all models loaded. Raises `UserError` for an unavailable one, before any measurement."""
    return {name: partial(measure_word_errors, transcriber) for name, transcriber in load_transcribers(names).items()}


def load_transcribers(names: Iterable[str]) -> dict[str, Transcriber]:
    """Name → transcriber. Raises `UserError` for an unavailable one."""
    return {
        name: pocketsphinx_recognizer.load_recognizer() if name == pocketsphinx_recognizer.NAME else _load_whisper(name) for name in names
    }


def measure_word_errors(transcriber: Transcriber, spoken: SpokenTexts) -> float:
    """The word error rate over all sentences."""
    return intelligibility.transcripts_wer([(text, transcriber(samples)) for text, samples in spoken], "english")


def _load_whisper(name: str) -> Transcriber:
    intelligibility.check_whisper(name)
    model = intelligibility.load_whisper(name)
    return lambda samples: intelligibility.transcribe(model, samples, "english").text
