"""Who is spoken for, and when: one request after another in one thread, a bounded number waiting, nobody who has gone."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .sampling import Sampling
    from .synthesis import Request, Synthesizer

Piece = np.ndarray | Exception | None
"""A chunk, what went wrong, or the end."""


class FullError(Exception):
    """As many requests are waiting as may; try again later."""


class ClosedError(Exception):
    """The server ends; what was made is not all."""


class Speech:
    """Owns the opened models and the thread that speaks with them, until `close`. For one event loop."""

    def __init__(self, models: Mapping[str, Synthesizer], room: int) -> None:
        """`room`: how many requests may wait while another is spoken."""
        self.models, self.room, self.inside = models, room, 0
        self._closing = threading.Event()
        self._thread = ThreadPoolExecutor(1, "speech")  # two at once would share the model's caches, and each other's time

    async def speak(self, model: str, request: Request, sampling: Sampling) -> AsyncGenerator[np.ndarray, None]:
        """Samples [n] float32 as they are made. Whoever closes the iterator, or is cancelled, ends the work at its next chunk.

        Raises `FullError` at the first step if no more may wait, and whatever goes wrong in the model.
        """
        if self.inside > self.room:
            raise FullError(f"{self.inside} requests are in the house, and no more may wait; try again in a few seconds")
        made: asyncio.Queue[Piece] = asyncio.Queue()
        loop, unwanted = asyncio.get_running_loop(), threading.Event()

        def put(piece: Piece) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever would have heard
                loop.call_soon_threadsafe(made.put_nowait, piece)

        self.inside += 1
        try:
            job = self._thread.submit(self._make, self.models[model], request, sampling, put, unwanted)
            while (piece := await made.get()) is not None:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            unwanted.set()
            job.cancel()
            self.inside -= 1

    def _make(
        self, voice: Synthesizer, request: Request, sampling: Sampling, put: Callable[[Piece], None], unwanted: threading.Event
    ) -> None:
        """In the thread. What is made is not held back for a slow listener: all others would wait for that one, too."""
        try:
            for wave in voice.stream(request, sampling):
                put(wave)
                if unwanted.is_set():
                    return
                if self._closing.is_set():
                    raise ClosedError("the server is closing")
            put(None)
        except Exception as error:
            put(error)

    def close(self) -> None:
        """End the work in hand at its next chunk, forget what waits, give the models' memory back."""
        self._closing.set()
        self._thread.shutdown(cancel_futures=True)
        for voice in self.models.values():
            voice.close()
