"""The queue of a speech server: voices that can batch speak several requests at once, others one at a time. Both are counted in the
metrics."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from overtone.recipes.serving.continuous_batch_scheduler import CutOffError
from overtone.recipes.serving.prometheus_metrics import ServerMetrics
from overtone.recipes.serving.request_queue import RequestQueue
from overtone.recipes.serving.running_batch_interface import LENGTH, STOP, OneAtATime
from overtone.recipes.speech.interface import BatchingVoice, SpeechSampling, SpokenRequest
from overtone.recipes.speech.serving.passage_batch import PassageBatch, SpeechLane

if TYPE_CHECKING:
    from overtone.recipes.speech.interface import SpeechRequest, Voice

DEADLINE_SECONDS = 300.0
"""Longest time from a request to the end of its speech."""


class SpeechQueue(RequestQueue[SpokenRequest, np.ndarray]):
    """Owns the loaded models and the thread that speaks with them, until `close`. Must be used in a single event loop."""

    def __init__(
        self,
        models: Mapping[str, Voice],
        room: int,
        slots: int = 1,
        deadline_seconds: float = DEADLINE_SECONDS,
        typed: Mapping[str, str] = MappingProxyType({}),
        longest_seconds: float = SpeechSampling.max_seconds,
    ) -> None:
        """`slots`: how many requests a model speaks at once, if it can. `longest_seconds`: limit of a passage. The other parameters are
        those of `RequestQueue`."""
        results = {"audio_seconds": "Duration of the generated speech."}
        metrics = ServerMetrics("speech", "audio", frozenset({"/v1/audio/speech", "/speak"}), models, results)
        lanes = {name: open_lane(voice, slots, longest_seconds) for name, voice in models.items()}
        super().__init__(lanes, metrics, room, deadline_seconds, typed)
        self.models = models

    async def speak(
        self, model: str, request: SpeechRequest, sampling: SpeechSampling, client: str = ""
    ) -> AsyncGenerator[np.ndarray, None]:
        """Yield samples [n] float32 while they are generated, like `generate`, and count their duration. Raises `CutOffError` after the
        last samples of speech that reached the time limit."""
        async with aclosing(self.generate(model, SpokenRequest(request, sampling), client)) as steps:
            async for progress in steps:
                if progress.piece is not None:
                    self.metrics.results["audio_seconds"].labels(model).inc(len(progress.piece) / self.models[model].rate)
                    yield progress.piece
                if progress.over == LENGTH:
                    limit = f"--max-seconds {sampling.max_seconds:g}"
                    raise CutOffError(f"the model did not end the speech of a passage, which was cut off at {limit}")

    def close(self) -> None:
        """End the thread, as `RequestQueue.close` does, and free the models' memory."""
        super().close()
        for voice in self.models.values():
            voice.close()


def can_batch(voice: Voice, slots: int) -> bool:
    """Return whether requests of this voice join a running batch."""
    return slots > 1 and isinstance(voice, BatchingVoice)


def open_lane(voice: Voice, slots: int, longest_seconds: float) -> SpeechLane:
    """Return the running batch of a voice; if it has none, the lane takes one request at a time."""
    if can_batch(voice, slots):
        assert isinstance(voice, BatchingVoice)
        return PassageBatch(voice.open_batch(slots, longest_seconds), voice.rate)

    def stream(spoken: SpokenRequest) -> Generator[np.ndarray, None, str]:
        result = yield from voice.stream(spoken.request, spoken.sampling)
        return STOP if result.ended else LENGTH

    return PassageBatch(OneAtATime[SpokenRequest, np.ndarray](stream), voice.rate)
