"""Speech of requests that join and leave a running batch: the frames of all of them together, the sound of each as its chunks are due.

Must not import torch: `frame_synthesizer` imports it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from overtone.recipes.serving.running_batch_interface import LENGTH, STOP, StepProgress

from .interface import SpeechRequest, SpeechSampling, SpokenRequest

if TYPE_CHECKING:
    from torch import Tensor

    from .decoding.continuous_batching import FrameBatch, RowFrame

FIRST_CHUNK, LARGEST_CHUNK = 1, 32
"""Frames per chunk of a stream: one at first, so that sound starts early, then each time twice as many, which cost less per frame."""
Join = Callable[[SpeechRequest, SpeechSampling], int]
DecodeStream = Callable[[SpeechRequest, Iterator["Tensor"]], Iterator["Tensor"]]


class _Pieces:
    """The pieces of codes that a codec's stream reads. The stream takes one piece at a time, if there is one."""

    def __init__(self) -> None:
        self._waiting: deque[Tensor] = deque()

    def put(self, piece: Tensor) -> None:
        self._waiting.append(piece)

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        if not self._waiting:
            raise StopIteration
        return self._waiting.popleft()


@dataclass
class _Speech:
    """The codes of one request that are not sound yet, and its codec's stream."""

    pieces: _Pieces
    sound: Iterator[Tensor]
    sizes: Iterator[int]
    due: int
    frames: list[Tensor]


def growing_chunk_sizes() -> Iterator[int]:
    """Frames of the first chunk, of the next one, and so on."""
    size = FIRST_CHUNK
    while True:
        yield size
        size = min(2 * size, LARGEST_CHUNK)


class SpeechBatch:
    """Owns the requests in progress and their codec streams. Implements `RunningBatch` for `SpokenRequest`; its pieces are chunks
    [samples] float32."""

    def __init__(self, batch: FrameBatch[Any, Any, Any], join: Join, decode_stream: DecodeStream) -> None:
        """`join`: starts a request in a row of the batch and returns the row. `decode_stream`: as `FrameVoice.decode_stream`."""
        self._batch, self._join, self._decode_stream = batch, join, decode_stream
        self._speeches: dict[int, _Speech] = {}

    @property
    def slots(self) -> int:
        """The maximum number of requests at once."""
        return self._batch.slots

    def join(self, spoken: SpokenRequest) -> int:
        """Implements `RunningBatch`."""
        pieces, sizes = _Pieces(), growing_chunk_sizes()
        sound = self._decode_stream(spoken.request, iter(pieces))
        row = self._batch.join_or_free(lambda: self._join(spoken.request, spoken.sampling))
        self._speeches[row] = _Speech(pieces, sound, sizes, next(sizes), [])
        return row

    def step(self) -> dict[int, StepProgress[np.ndarray]]:
        """Implements `RunningBatch`."""
        return {row: self._add(row, frame) for row, frame in self._batch.step().items()}

    def leave(self, slot: int) -> None:
        """Implements `RunningBatch`."""
        self._speeches.pop(slot, None)
        self._batch.leave(slot)

    def _add(self, row: int, frame: RowFrame) -> StepProgress[np.ndarray]:
        import torch

        speech = self._speeches[row]
        if frame.codes is not None:
            speech.frames.append(frame.codes)
        waves = []
        if speech.frames and (frame.over or len(speech.frames) == speech.due):
            speech.pieces.put(torch.stack(speech.frames))
            speech.frames, speech.due = [], next(speech.sizes)
            waves.append(next(speech.sound))
        if frame.over:
            del self._speeches[row]
            waves.extend(speech.sound)  # what a codec holds back until it knows that no codes follow
        sound = [wave.cpu().numpy() for wave in waves if len(wave)]
        over = None if not frame.over else STOP if frame.ended else LENGTH
        return StepProgress(np.concatenate(sound) if sound else None, over)
