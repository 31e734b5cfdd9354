"""A queue transcribes one recording at a time, and counts its seconds."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.serving.continuous_batch_scheduler import DeadlineError, ServerClosedError
from overtone.recipes.whisper.serving import transcription_queue
from overtone.recipes.whisper.serving.transcription_queue import TranscriptionQueue, TranscriptionRequest
from tests.recipes.whisper.serving.served_whisper import FOUND, make_queue


def test_a_transcript_is_returned_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(transcription_queue, "transcribe_file", lambda *arguments: given.append(arguments) or FOUND)
    queue = make_queue()
    request = TranscriptionRequest(Path("a.wav"), "german")
    assert asyncio.run(queue.transcribe("mine", request, "client")) == FOUND
    queue.close()
    assert given[0][2:5] == (Path("a.wav"), "file", "german")
    assert queue.metrics.registry.get_sample_value("overtone_transcription_audio_seconds_total", {"model": "mine"}) == FOUND.seconds


@pytest.mark.parametrize("way", ["the deadline", "the client", "the server"])
def test_a_transcript_that_nobody_waits_for_ends_after_the_current_batch(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    begun, over = threading.Event(), threading.Event()

    def transcribe(*arguments: Any) -> None:
        """Batch after batch, without an end of its own."""
        begun.set()
        try:
            while True:
                arguments[-1]()
        finally:
            over.set()

    async def ask(queue: TranscriptionQueue) -> None:
        request = TranscriptionRequest(Path("a.wav"), None)
        asked = asyncio.create_task(queue.transcribe("mine", request, "client"))
        await asyncio.to_thread(begun.wait, 60)
        if way == "the client":
            asked.cancel()
        elif way == "the server":
            await asyncio.to_thread(queue.fail_waiting)
        await asked

    monkeypatch.setattr(transcription_queue, "transcribe_file", transcribe)
    queue = make_queue(deadline=0.2 if way == "the deadline" else 60.0)
    errors = {"the deadline": DeadlineError, "the client": asyncio.CancelledError, "the server": ServerClosedError}
    with pytest.raises(errors[way]):
        asyncio.run(ask(queue))
    assert over.wait(60)
    queue.close()


def test_an_error_of_the_model_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise UserError("no sound")

    monkeypatch.setattr(transcription_queue, "transcribe_file", fail)
    queue = make_queue()
    with pytest.raises(UserError, match="no sound"):
        asyncio.run(queue.transcribe("mine", TranscriptionRequest(Path("a.wav"), None), "client"))
    queue.close()
