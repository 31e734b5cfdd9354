"""The loop over frames that a decoding session of any speech model runs, and what it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from .cuda_graphs import FrameGraphs, window_size


@dataclass(frozen=True)
class DecodedCodes:
    """The codes of one row."""

    codes: Tensor
    """[T, codebooks] int64, on the CPU."""
    ended: bool
    """False: cut off before end of speech."""


class FrameLoop(ABC):
    """Generates frames for one batch until all rows have ended or the limit is reached.

    A frame is one sequence of tensor operations that never reads a value, so on CUDA it is captured once and replayed (`cuda_graphs`).
    A subclass sets `codes` to zeros [frames, B, codebooks], whose length is the limit, and owns all tensors that a frame reads and writes,
    at fixed addresses in memory.
    """

    codes: Tensor
    """[frames, B, codebooks] int64; the first `frame_count` frames are generated."""

    def __init__(self, prompt: int, codes: Tensor, positions: int = 1) -> None:
        """`prompt`: the slots of the cache before the first frame. `positions`: the slots that a frame takes."""
        self.codes, self.frame_count, self._prompt, self._positions = codes, 0, prompt, positions
        self._graphs = FrameGraphs.open(codes.device)

    @property
    @abstractmethod
    def ended(self) -> Tensor:
        """[B] bool: rows that have reached end of speech."""

    @abstractmethod
    def find_ends(self, codes: Tensor) -> Tensor:
        """Return which frames contain no sound but mark the end of speech: […, codebooks] → […] bool."""

    @abstractmethod
    def run_frame(self, size: int) -> None:
        """Generate one frame, with attention to the first `size` slots of the cache. All results are written into existing tensors."""

    def check_well_formed(self) -> None:  # noqa: B027  # most sessions can only generate codes
        """Raise `UserError` if a generated token is not a code."""

    def frames(self) -> Iterator[int]:
        """Generate frame after frame until all rows have ended; yields the number of frames. `results` returns the codes so far."""
        while self.frame_count < len(self.codes) and not bool(self.ended.all()):
            self._advance()
            yield self.frame_count

    def chunks(self, sizes: Iterator[int]) -> Iterator[Tensor]:
        """The codes of all rows, [frames, B, codebooks] at a time, as soon as the next size of `sizes` is reached. A frame in which all
        rows end is left out."""
        start, due = 0, next(sizes)
        for count in self.frames():
            if count - start == due:
                yield from self._find_sound(start, count)
                start, due = count, next(sizes)
        yield from self._find_sound(start, self.frame_count)

    def _find_sound(self, start: int, end: int) -> Iterator[Tensor]:
        """The frames from `start` to `end` as one piece, if there are any."""
        if start < end and bool(self.find_ends(self.codes[end - 1]).all()):
            end -= 1
        if start < end:
            yield self.codes[start:end]

    def results(self) -> list[DecodedCodes]:
        """Each row up to its end of speech."""
        codes = self.codes[: self.frame_count].transpose(0, 1).cpu()
        over = self.find_ends(codes).int()
        lengths = torch.where(over.any(1), over.argmax(1), self.frame_count) if self.frame_count else over.sum(1)
        return [DecodedCodes(row[:length], bool(ended)) for row, length, ended in zip(codes, lengths, self.ended.cpu(), strict=True)]

    @torch.inference_mode()
    def _advance(self) -> None:
        needed = self._prompt + self._positions * (self.frame_count + 1)
        if self._graphs is None:
            self.run_frame(needed)
        else:
            size = window_size(needed, self._prompt + self._positions * len(self.codes))
            self._graphs.run(partial(self.run_frame, size), size)
        self.frame_count += 1


def growing_chunk_sizes(first: int = 1, largest: int = 32) -> Iterator[int]:
    """Frames per chunk of a stream: one at first, so that sound starts early, then more, which cost less per frame."""
    while True:
        yield first
        first = min(2 * first, largest)
