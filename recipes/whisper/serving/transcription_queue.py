"""The requests of a transcription server: each model transcribes one recording at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from overtone.data_prep.audio.sandboxed_decoder import AudioDecoder
from overtone.data_prep.audio.waveform import AudioLimits
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
        metrics = ServerMetrics("transcription", "text", API_PATH, models, {"audio_seconds": "Duration of the transcribed recordings."})

        def transcribe(model: Any, request: TranscriptionRequest) -> Iterator[Transcript]:
            yield transcribe_file(model, decoder, request.path, request.language, limits)

        lanes = {name: OneAtATime[TranscriptionRequest, Transcript](partial(transcribe, served.model)) for name, served in models.items()}
        super().__init__(lanes, metrics, room, deadline_seconds, typed)
        self.models = models

    async def transcribe(self, model: str, request: TranscriptionRequest, client: str) -> Transcript:
        """The transcript of a recording. Raises what `generate` raises."""
        found: Transcript | None = None
        async with aclosing(self.generate(model, request, client)) as steps:
            async for progress in steps:
                found = progress.piece or found
        assert found is not None, "the generator has yielded a transcript before its end"
        self.metrics.results["audio_seconds"].labels(model).inc(found.seconds)
        return found
