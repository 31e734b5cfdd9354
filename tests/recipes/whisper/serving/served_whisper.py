"""A transcription server without a model, whose transcripts are given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from overtone.data_prep.audio.waveform import RECORDING
from overtone.recipes.whisper.inference.file_transcription import TimedWord, Transcript
from overtone.recipes.whisper.serving.transcription_queue import ServedRecognizer, TranscriptionQueue

WORDS = [TimedWord(" Good", 0.1, 0.5), TimedWord(" day.", 0.5, 1.0), TimedWord(" One", 1.1, 1.4), TimedWord(" two", 3.0, 3.25)]
FOUND = Transcript(WORDS, "english", 3.5)


def make_queue(multilingual: bool = True, deadline: float = 60.0) -> TranscriptionQueue:
    decoder: Any = None
    served = ServedRecognizer(SimpleNamespace(is_multilingual=multilingual), 7, None)
    return TranscriptionQueue({"mine": served}, decoder, RECORDING, 4, deadline, {"exports/mine": "mine"})
