"""Speech of one text of any length: cleaned, split into passages, spoken, and joined.

Must not import torch: `overtone generate --help` imports modules that import this one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .interface import SpeechRequest, SpeechResult, SpeechSampling, Voice, VoiceFolder
from .passages import PassageJoiner, join_results, split_request
from .spoken_text import SpokenText, prepare_request


@dataclass(frozen=True)
class PreparedText:
    """A text that a model can speak."""

    request: SpeechRequest
    """The request, with the text that is spoken."""
    passages: list[SpeechRequest]
    cleaned: SpokenText
    """The cleaned text, and what was removed from the given text."""


def prepare_text(model: Voice | VoiceFolder, request: SpeechRequest, max_seconds: float, name: str) -> PreparedText:
    """Clean and split a text. Raises `UserError` if the model cannot speak it; `name`: what the message calls the text."""
    request, cleaned = prepare_request(request, name)
    passages = split_request(request, max_seconds)
    for passage in passages:
        model.check(passage)
    return PreparedText(request, passages, cleaned)


def speak_passages(voice: Voice, passages: Sequence[SpeechRequest], sampling: SpeechSampling) -> SpeechResult:
    """The speech of a text, one passage after the other."""
    return join_results([result for passage in passages for result in voice.speak([passage], sampling)])


def stream_passages(voice: Voice, passages: Sequence[SpeechRequest], sampling: SpeechSampling) -> Generator[np.ndarray, None, SpeechResult]:
    """Stream the joined passages of one text, as `Voice.stream` does for one passage."""
    joiner, waves, ended = PassageJoiner(voice.rate, len(passages)), [np.zeros(0, np.float32)], True

    def speak() -> Iterator[np.ndarray | None]:
        nonlocal ended
        for passage in passages:
            result = yield from voice.stream(passage, sampling)
            ended = ended and result.ended
            yield None  # the end of the passage

    for chunk in speak():
        wave = joiner.end_passage() if chunk is None else joiner.feed(chunk)
        if len(wave):
            waves.append(wave)
            yield wave
    return SpeechResult(np.concatenate(waves), voice.rate, ended)
