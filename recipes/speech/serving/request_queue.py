"""The requests for speech of a server: voices that batch speak several at once, others one at a time, and each way ends in the metrics."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

import numpy as np

from recipes.serving.batch_scheduler import BatchScheduler
from recipes.serving.prometheus_metrics import name_outcome
from recipes.serving.running_batch import OneAtATime, RunningBatch
from recipes.speech.interface import BatchingVoice, SpokenRequest
from recipes.speech.serving.metrics import ModelMetrics

if TYPE_CHECKING:
    from recipes.speech.interface import SpeechRequest, SpeechSampling, Voice

SpeechLane = RunningBatch[SpokenRequest, np.ndarray]
DEADLINE_SECONDS = 300.0
"""Longest time from a request to the end of its speech."""


class SpeechQueue:
    """Owns the loaded models and the thread that speaks with them, until `close`. For one event loop."""

    def __init__(self, models: Mapping[str, Voice], room: int, slots: int = 1, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        """`room`: maximum number of waiting requests of each model. `slots`: how many requests a model speaks at once, if it can."""
        self.models, self.deadline_seconds = models, deadline_seconds
        batches = {name: open_lane(voice, slots) for name, voice in models.items()}
        self._scheduler = BatchScheduler[SpokenRequest, np.ndarray](batches, room)
        self.metrics = {name: ModelMetrics(self._scheduler.figures[name]) for name in models}

    @property
    def room(self) -> int:
        """Maximum number of waiting requests of each model."""
        return self._scheduler.room

    @property
    def slots(self) -> int:
        """How many requests all models speak at once."""
        return self._scheduler.count_slots()

    @property
    def pending(self) -> int:
        """Requests that wait or are spoken."""
        return self._scheduler.pending

    @property
    def draining(self) -> bool:
        """Whether new requests are refused, while accepted ones are still spoken."""
        return self._scheduler.draining

    async def speak(
        self, model: str, request: SpeechRequest, sampling: SpeechSampling, client: str = ""
    ) -> AsyncGenerator[np.ndarray, None]:
        """Samples [n] float32 while they are generated. Closing or cancelling the iterator frees the request's place in the batch.

        Clients take turns. Raises `QueueFullError` at the first step if the queue is full, `ServerClosedError` if the server is shutting
        down, `DeadlineError` if the speech was not complete in time, and every error of the model.
        """
        metrics, began, spoken = self.metrics[model], time.monotonic(), False
        outcome, rate = "cancelled", self.models[model].rate
        steps = self._scheduler.generate(model, SpokenRequest(request, sampling), client, self.deadline_seconds)
        try:
            async with aclosing(steps):
                async for progress in steps:
                    if progress.over is not None:
                        outcome = "completed"
                    if progress.piece is None:
                        continue
                    metrics.audio_seconds += len(progress.piece) / rate
                    if not spoken:
                        metrics.observe_first(time.monotonic() - began)
                        spoken = True
                    yield progress.piece
        except Exception as error:
            outcome = name_outcome(error)
            raise
        finally:
            metrics.outcomes[outcome] += 1

    def refuse_new(self) -> None:
        """Refuse new requests from now on; those in the queue are spoken."""
        self._scheduler.refuse_new()

    def close(self) -> None:
        """Stop after the current frame, fail the requests that are not complete, free the models' memory."""
        self._scheduler.close()
        for voice in self.models.values():
            voice.close()


def can_batch(voice: Voice, slots: int) -> bool:
    """Whether requests of this voice join a running batch."""
    return slots > 1 and isinstance(voice, BatchingVoice)


def open_lane(voice: Voice, slots: int) -> SpeechLane:
    """The running batch of a voice; one request at a time if it has none."""
    if can_batch(voice, slots):
        assert isinstance(voice, BatchingVoice)
        return voice.open_batch(slots)

    def stream(spoken: SpokenRequest) -> Iterator[np.ndarray]:
        return iter(voice.stream(spoken.request, spoken.sampling))

    return OneAtATime[SpokenRequest, np.ndarray](stream)
