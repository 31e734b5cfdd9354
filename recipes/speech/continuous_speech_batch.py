"""Speech of requests that join and leave a running batch: the frames of all of them together, the sound of each as its chunks are due.

Must not import torch: `frame_synthesizer` imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from overtone.recipes.serving.running_batch_interface import LENGTH, STOP, StepProgress

from .interface import SpeechRequest, SpeechSampling, SpokenRequest

if TYPE_CHECKING:
    from torch import Tensor

    from .decoding.continuous_batching import FrameBatch

LARGEST_CHUNK = 32
"""Most frames in a chunk of a stream."""
StreamT = TypeVar("StreamT")
Join = Callable[[SpeechRequest, SpeechSampling], int]


@dataclass(frozen=True)
class NewFrames(Generic[StreamT]):
    """Frames of a request that become sound."""

    stream: StreamT
    """The codec's state of this request."""
    codes: Tensor
    """[frames, codebooks]; without frames only if they are the last."""
    last: bool
    """True if no frames follow."""


class SoundDecoder(Protocol[StreamT]):
    """The codec of a voice, for requests in progress."""

    @property
    def joins_streams(self) -> bool:
        """True if streams are decoded together, and neither that nor the cut into chunks changes their samples."""

    def open_stream(self, request: SpeechRequest) -> StreamT:
        """The codec's state before the first frame of a request."""

    def decode_frames(self, new: Sequence[NewFrames[StreamT]]) -> list[Tensor]:
        """Samples [n] float32 of each stream that are now final; the concatenated results are its wave."""


@dataclass
class _Speech:
    """The codes of one request that are not sound yet, and its codec's state."""

    stream: Any
    frames: list[Tensor] = field(default_factory=list)
    decoded: int = 0
    """Number of frames that became sound."""

    @property
    def is_due(self) -> bool:
        """True if the frames are a chunk: one at first, so that sound starts early, then twice as many each time, which cost less."""
        return len(self.frames) == min(self.decoded + 1, LARGEST_CHUNK)


class SpeechBatch:
    """Owns the requests in progress and their codec's state. Implements `RunningBatch` for `SpokenRequest`; its pieces are chunks
    [samples] float32."""

    def __init__(self, batch: FrameBatch[Any, Any, Any], join: Join, codec: SoundDecoder[Any]) -> None:
        """`join`: starts a request in a row of the batch and returns the row."""
        self._batch, self._join, self._codec = batch, join, codec
        self._speeches: dict[int, _Speech] = {}

    @property
    def slots(self) -> int:
        """The maximum number of requests at once."""
        return self._batch.slots

    def join(self, spoken: SpokenRequest) -> int:
        """Implements `RunningBatch`."""

        def start() -> int:
            row = self._join(spoken.request, spoken.sampling)
            self._speeches[row] = _Speech(self._codec.open_stream(spoken.request))
            return row

        return self._batch.join_or_free(start)

    def step(self) -> dict[int, StepProgress[np.ndarray]]:
        """Implements `RunningBatch`."""
        found = self._batch.step()
        for row, frame in found.items():
            if frame.codes is not None:
                self._speeches[row].frames.append(frame.codes)
        over = {row for row, frame in found.items() if frame.over}
        due = [row for row in found if row in over or self._speeches[row].is_due]
        if due and self._codec.joins_streams:  # the others cost least now
            due = [row for row in found if row in over or self._speeches[row].frames]
        sounds = self._decode(due, over)
        for row in over:
            del self._speeches[row]
        ends = {row: STOP if found[row].ended else LENGTH for row in over}
        return {row: StepProgress(sounds.get(row), ends.get(row)) for row in found}

    def leave(self, slot: int) -> None:
        """Implements `RunningBatch`."""
        self._speeches.pop(slot, None)
        self._batch.leave(slot)

    def _decode(self, rows: Sequence[int], over: set[int]) -> dict[int, np.ndarray]:
        """The sound of the frames of these rows, where there is any."""
        import torch

        new = list[NewFrames[Any]]()
        for row in rows:
            speech = self._speeches[row]
            codes = torch.stack(speech.frames) if speech.frames else self._batch.codes[:0].cpu()
            new.append(NewFrames(speech.stream, codes, row in over))
            speech.decoded, speech.frames = speech.decoded + len(codes), []
        waves = self._codec.decode_frames(new) if new else []
        return {row: wave.cpu().numpy() for row, wave in zip(rows, waves, strict=True) if len(wave)}
