"""The queue of requests: one thread speaks them in order, a limited number can wait, and requests of disconnected clients are dropped."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from recipes.speech.serving.metrics import ModelMetrics

if TYPE_CHECKING:
    from recipes.speech.interface import SpeechRequest, SpeechSampling, Voice

Piece = np.ndarray | Exception | None
"""A chunk of samples [n], an error, or None at the end."""


class QueueFullError(Exception):
    """The queue is full."""


class ServerClosedError(Exception):
    """The server is shutting down; the speech is incomplete."""


class SpeechQueue:
    """Owns the loaded models and the thread that speaks with them, until `close`. For one event loop."""

    def __init__(self, models: Mapping[str, Voice], room: int) -> None:
        """`room`: maximum number of waiting requests. `pending` counts the waiting requests and the current one."""
        self.models, self.room, self.pending = models, room, 0
        self.metrics = {name: ModelMetrics() for name in models}
        self.draining = False
        """Whether new requests are refused, while those in the queue are still spoken."""
        self._closing = threading.Event()
        self._thread = ThreadPoolExecutor(1, "speech")  # two at a time would share the model's caches, and slow each other down

    async def speak(self, model: str, request: SpeechRequest, sampling: SpeechSampling) -> AsyncGenerator[np.ndarray, None]:
        """Samples [n] float32 while they are generated. Closing or cancelling the iterator stops generation at its next chunk.

        Raises `QueueFullError` at the first step if the queue is full, `ServerClosedError` if the server is shutting down, and every error
        of the model.
        """
        metrics, began = self.metrics[model], time.monotonic()
        if self.draining:
            metrics.outcomes["shutting_down"] += 1
            raise ServerClosedError("the server is shutting down")
        if self.pending > self.room:
            metrics.outcomes["queue_full"] += 1
            raise QueueFullError(f"Queue full ({self.pending} pending); retry in a few seconds")
        pieces: asyncio.Queue[Piece] = asyncio.Queue()
        loop, cancelled = asyncio.get_running_loop(), threading.Event()

        def put(piece: Piece) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended, so there are no clients
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        self.pending += 1
        outcome, spoken = "cancelled", False
        try:
            job = self._thread.submit(self._generate, model, request, sampling, put, cancelled)
            while (piece := await pieces.get()) is not None:
                if isinstance(piece, Exception):
                    outcome = "shutting_down" if isinstance(piece, ServerClosedError) else "failed"
                    raise piece
                if not spoken:
                    metrics.observe_first_audio(time.monotonic() - began)
                    spoken = True
                yield piece
            outcome = "completed"
        finally:
            metrics.outcomes[outcome] += 1
            cancelled.set()
            job.cancel()
            self.pending -= 1

    def _generate(
        self, model: str, request: SpeechRequest, sampling: SpeechSampling, put: Callable[[Piece], None], cancelled: threading.Event
    ) -> None:
        """Runs in the thread. It does not wait for a slow client, because all other clients would wait too."""
        voice, metrics, began = self.models[model], self.metrics[model], time.monotonic()
        try:
            for wave in voice.stream(request, sampling):
                metrics.audio_seconds += len(wave) / voice.rate
                put(wave)
                if cancelled.is_set():
                    return
                if self._closing.is_set():
                    raise ServerClosedError("the server is shutting down")
            put(None)
        except Exception as error:
            put(error)
        finally:
            metrics.generation_seconds += time.monotonic() - began

    def refuse_new(self) -> None:
        """Refuse new requests from now on; those in the queue are spoken."""
        self.draining = True

    def close(self) -> None:
        """Stop the current request at its next chunk, drop the waiting ones, free the models' memory."""
        self._closing.set()
        self._thread.shutdown(cancel_futures=True)
        for voice in self.models.values():
            voice.close()
