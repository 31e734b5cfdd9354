"""A queue transcribes one recording at a time, and counts its seconds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.whisper.serving import transcription_queue
from overtone.recipes.whisper.serving.transcription_queue import TranscriptionRequest
from tests.recipes.whisper.serving.served_whisper import FOUND, make_queue


def test_a_transcript_is_returned_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(transcription_queue, "transcribe_file", lambda *arguments: given.append(arguments) or FOUND)
    queue = make_queue()
    request = TranscriptionRequest(Path("a.wav"), "german")
    assert asyncio.run(queue.transcribe("mine", request, "client")) == FOUND
    queue.close()
    assert given[0][2:4] == (Path("a.wav"), "german")
    assert queue.metrics.registry.get_sample_value("overtone_transcription_audio_seconds_total", {"model": "mine"}) == FOUND.seconds


def test_an_error_of_the_model_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise UserError("no sound")

    monkeypatch.setattr(transcription_queue, "transcribe_file", fail)
    queue = make_queue()
    with pytest.raises(UserError, match="no sound"):
        asyncio.run(queue.transcribe("mine", TranscriptionRequest(Path("a.wav"), None), "client"))
    queue.close()
