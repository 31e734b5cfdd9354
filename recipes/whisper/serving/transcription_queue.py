"""The requests of a transcription server: each model transcribes one recording at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from overtone.data_prep.audio.sandboxed_decoder import AudioDecoder
from overtone.data_prep.audio.waveform import AudioLimits
from overtone.recipes.serving.continuous_batch_scheduler import ServerClosedError
from overtone.recipes.serving.prometheus_metrics import ServerMetrics
from overtone.recipes.serving.request_queue import RequestQueue
from overtone.recipes.serving.running_batch_interface import OneAtATime

from ..inference.file_transcription import Transcript, transcribe_file

API_PATH = "/v1/audio/transcriptions"


@dataclass(frozen=True)
class ServedRecognizer:
    """A loaded model."""

    model: Any
    created: int
    """Unix time of the export."""
    language: str | None
    """Whisper's name of the language of requests that name none; None: it is detected."""


@dataclass(frozen=True)
class TranscriptionRequest:
    """A recording to transcribe."""

    path: Path
    language: str | None
    """Whisper's name; None: detected."""
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set if nobody waits for the transcript any more."""

    def require_wanted(self) -> None:
        """Raises `ServerClosedError` once the transcript is not wanted."""
        if self.stopped.is_set():
            raise ServerClosedError("nobody waits for the transcript any more")


class TranscriptionQueue(RequestQueue[TranscriptionRequest, Transcript]):
    """Owns the thread that transcribes, until `close`. For one event loop."""

    def __init__(
        self,
        models: Mapping[str, ServedRecognizer],
        decoder: AudioDecoder,
        limits: AudioLimits,
        room: int,
        deadline_seconds: float,
        typed: Mapping[str, str],
    ) -> None:
        """`decoder`: used by the one thread alone. `limits`: of a recording. The others as of `RequestQueue`."""
        results = {"audio_seconds": "Duration of the transcribed recordings."}
        metrics = ServerMetrics("transcription", "text", frozenset({API_PATH}), models, results)

        def transcribe(model: Any, request: TranscriptionRequest) -> Iterator[Transcript]:
            yield transcribe_file(model, decoder, request.path, "file", request.language, limits, request.require_wanted)

        lanes = {name: OneAtATime[TranscriptionRequest, Transcript](partial(transcribe, served.model)) for name, served in models.items()}
        super().__init__(lanes, metrics, room, deadline_seconds, typed)
        self.models = models
        self._live = set[TranscriptionRequest]()

    def fail_waiting(self) -> None:
        """Stop transcribing after the current batch of a recording: the requests that are not complete fail with `ServerClosedError`."""
        for request in self._live.copy():
            request.stopped.set()
        super().fail_waiting()

    async def transcribe(self, model: str, request: TranscriptionRequest, client: str) -> Transcript:
        """The transcript of a recording. Raises what `generate` raises."""
        found: Transcript | None = None
        self._live.add(request)
        try:
            async with aclosing(self.generate(model, request, client)) as steps:
                async for progress in steps:
                    found = progress.piece or found
        finally:  # the client left, or the deadline passed: the thread, which all models share, is for others
            self._live.discard(request)
            request.stopped.set()
        assert found is not None, "the generator has yielded a transcript before its end"
        self.metrics.results["audio_seconds"].labels(model).inc(found.seconds)
        return found
