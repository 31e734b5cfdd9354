"""Frames of requests that join and leave between frames: of one request alone, of a file's texts, or of a server's clients.

A request takes a free row of the batch. A frame is one sequence of tensor operations at fixed addresses that never reads a value, so on
CUDA it is captured once for each plan and attention window.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from overtone.finetune.errors import UserError

from .cuda_graphs import FrameGraphs
from .ragged_kv_cache import ROWS_MULTIPLE, RowSlots

PROMPT = 256
"""Slots that `capture_frames` adds for the prompt: enough for a passage of text and a reference clip of 10 s."""
Cache = TypeVar("Cache", bound=RowSlots)
PromptT = TypeVar("PromptT", bound=Sized)
"""The length of a prompt is the slots that it takes."""
SamplerT = TypeVar("SamplerT")
SamplerInT = TypeVar("SamplerInT", contravariant=True)


class RowSettings(Protocol[SamplerInT]):
    """The sampling settings of a batch's rows: `RowSampling`, or `RowFrameSampling`."""

    @property
    def plan(self) -> Hashable:
        """Value that determines which operations the settings need."""

    def set_row(self, row: int, sampler: SamplerInT) -> None:
        """The settings of a row from now on."""


@dataclass(frozen=True)
class DecodedCodes:
    """The codes of one request."""

    codes: Tensor
    """[T, codebooks] int64, on the CPU."""
    ended: bool
    """False: cut off before end of speech."""


@dataclass(frozen=True)
class RowFrame:
    """Frame that a step generated for one row."""

    codes: Tensor | None
    """[codebooks] int64 on the CPU; None: this step only found the end of speech."""
    over: bool
    """True if this was the last frame."""
    ended: bool
    """True if the speech has reached its end; False with `over`: cut off at the limit."""


@dataclass
class _Row:
    """A request in progress."""

    random: np.random.Generator
    limit: int
    count: int = 0


class FrameBatch(ABC, Generic[Cache, PromptT, SamplerT]):
    """Owns the cache and all tensors that a frame reads and writes. A subclass computes one frame of all rows.

    The codes of a request do not depend on the other rows: see `RowCache` for the arithmetic; and its random numbers come from its seed
    alone. They are those of NumPy's Philox generator with that seed, fp64 in [0, 1): one for each codebook of frame 0, then of frame 1, ….
    """

    unit: ClassVar[str] = "frames"
    """Noun for the steps of a request in messages."""
    limit_option: ClassVar[str] = "--max-seconds"
    """Option of `serve` that limits the length of a request."""

    @torch.inference_mode()
    def __init__(
        self,
        cache: Cache,
        sampling: RowSettings[SamplerT],
        requests: int,
        codebooks: int,
        most: int | None,
        positions: int = 1,
        captures: bool = True,
    ) -> None:
        """`cache`: a cache of `count_rows(requests)` rows, whose settings are `sampling`. `requests`: maximum number of requests at once.
        `most`: maximum slots of a request, such as the model's positions; None: no limit. `positions`: the slots of the cache that a frame
        takes. `captures`: False if a frame must not be captured as a CUDA graph."""
        rows, device = cache.rows, cache.lengths.device
        self.cache, self._settings, self.slots, self._most, self._positions = cache, sampling, requests, most, positions
        self.codes = torch.zeros(rows, codebooks, dtype=torch.int64, device=device)
        """[rows, codebooks]: the last frame."""
        self.random = torch.zeros(2, codebooks, rows, dtype=torch.float64, device=device)
        """Random numbers of this frame and of the next one."""
        self.frame = torch.zeros(rows, dtype=torch.int64, device=device)
        """[rows]: frames of each row that are generated."""
        self.occupied = torch.zeros(rows, dtype=torch.int64, device=device)
        """[rows]: 1 if the row has a request."""
        self._rows: dict[int, _Row] = {}
        self._on_host = torch.zeros(2, codebooks, rows, dtype=torch.float64, pin_memory=device.type == "cuda")
        self._drawn = self._on_host.numpy()
        self._graphs = FrameGraphs.open(device) if captures else None
        self._captured_slots = 0
        """Slots of the cache to which the graphs refer."""

    @abstractmethod
    def join(self, prompt: PromptT, sampler: SamplerT, seed: int, limit: int) -> int:
        """Start a request in a free row by `take_row`, and return the row. At most `limit` ≥ 1 frames are generated, fewer if the positions
        run out. Raises `UserError` for a prompt that leaves no position."""

    @abstractmethod
    def find_ends(self, codes: Tensor) -> Tensor:
        """Return which frames contain no sound but mark the end of speech: […, codebooks] → […] bool."""

    @abstractmethod
    def run_frame(self, size: int) -> None:
        """One frame of all rows, with attention to the first `size` slots. Sets `codes`. All results are written into existing tensors;
        `frame` and the lengths of the cache are advanced afterwards."""

    @property
    def is_running(self) -> bool:
        """True if a row has a request."""
        return bool(self._rows)

    @property
    def ended(self) -> Tensor:
        """[rows] bool: rows that have reached end of speech: those whose last frame marks it, unless the model knows it a frame before."""
        return self.find_ends(self.codes)

    @property
    def plan(self) -> Hashable:
        """Value that determines, apart from the window, which operations a frame has. A captured frame is only replayed for the same
        plan."""
        return self._settings.plan

    def prepare_frame(self) -> None:  # most batches have nothing to prepare
        """Before a frame, outside of a captured graph."""

    @torch.inference_mode()
    def capture_frames(self, frames: int, sampler: SamplerT) -> None:
        """Make room for requests of `frames` frames, and capture a frame of each window that they reach with these settings, so that no
        request waits for that. Does nothing where frames are not captured. No request may be running.

        Raises `UserError` if the memory does not suffice."""
        if self._graphs is None:
            return
        self._settings.set_row(0, sampler)
        try:
            self.cache.reserve(self._limit(PROMPT + self._positions * frames))
            for size in self.cache.list_windows():
                for _ in range(2):  # the second frame is the one that is captured
                    self._run(size)
        except torch.OutOfMemoryError:
            # Fewer requests need less memory only if they need fewer rows.
            smaller = "a smaller --batch" if self.slots > ROWS_MULTIPLE else "--batch 1"
            raise UserError(
                f"--batch {self.slots}: the GPU has no memory for so many requests of {frames:,} {self.unit}; "
                f"choose {smaller} or a smaller {self.limit_option}"
            ) from None

    @torch.inference_mode()
    def reserve(self, prompts: Sequence[PromptT], limit: int) -> None:
        """Make room for requests with these prompts and at most `limit` frames. So none of them enlarges the cache when it joins, which
        would need the memory of the old and of the new one."""
        self.cache.reserve(self._limit(max(map(len, prompts)) + self._positions * limit))

    def take_row(self, prompt: Tensor, sampler: SamplerT, seed: int, limit: int) -> tuple[int, Tensor]:
        """A free row, whose prompt [S, …] is read, and the state of its last position; the other parameters are those of `join`.

        Raises `RuntimeError` if no row is free, which the caller should have checked."""
        if self._most is not None:
            limit = min(limit, (self._most - len(prompt)) // self._positions)
            if limit < 1:
                raise UserError(f"a prompt of {len(prompt)} tokens fills the model's {self._most} positions; shorten the text")
        row = next((row for row in range(self.slots) if row not in self._rows), None)
        if row is None:
            raise RuntimeError(f"all {self.slots} rows are taken")
        self._reserve(len(prompt) + self._positions * limit)
        self._rows[row] = _Row(np.random.Generator(np.random.Philox(seed)), limit)  # first, so that `join_or_free` finds the row
        self._settings.set_row(row, sampler)
        state = self.cache.read_prompt(row, prompt)[-1]
        self._drawn[1, :, row] = self._rows[row].random.random(len(self._drawn[1]))
        self.random[1, :, row] = torch.from_numpy(self._drawn[1, :, row])
        self.frame[row] = 0
        self.occupied[row] = 1
        return row, state

    def _limit(self, slots: int) -> int:
        return slots if self._most is None else min(slots, self._most)

    def _reserve(self, slots: int) -> None:
        """Make room for a request of a server, whose later ones are not known: a cache that is too small grows to at least twice its size
        if the memory suffices, because each growth drops the captured frames."""
        if slots > self.cache.slots:
            with suppress(torch.OutOfMemoryError):
                self.cache.reserve(max(slots, self._limit(2 * self.cache.slots)))
            self.cache.reserve(slots)  # only now is the memory of a failed growth free

    def join_or_free(self, join: Callable[[], int]) -> int:
        """Start a request with `join`, and return its row. If that fails, for example without memory, no row stays taken."""
        before = set(self._rows)
        try:
            return join()
        except BaseException:
            for row in set(self._rows) - before:
                self.leave(row)
            raise

    @torch.inference_mode()
    def leave(self, row: int) -> None:
        """Free a row. Does nothing for a free one."""
        if self._rows.pop(row, None) is not None:
            self.cache.clear(row)
            self.frame[row] = 0
            self.occupied[row] = 0

    @torch.inference_mode()
    def step(self) -> dict[int, RowFrame]:
        """One frame of every row with a request. A row whose speech is over leaves the batch."""
        if not self._rows:
            return {}
        self._draw()
        self.prepare_frame()
        self._run(self.cache.find_window(self._positions))
        self.cache.advance([row in self._rows for row in range(self.cache.rows)], self._positions)
        # One copy, which waits for the frame; everything before it is queued.
        known = torch.cat([self.codes, torch.stack([self.ended, self.find_ends(self.codes)], 1)], 1).cpu()
        ended, ends = known[:, -2:].T.tolist()
        found = {row: self._describe(one, known[row, :-2], ended[row], ends[row]) for row, one in self._rows.items()}
        for row in [row for row, frame in found.items() if frame.over]:
            self.leave(row)
        return found

    def finish(self, rows: Sequence[int]) -> list[DecodedCodes]:
        """Generate frames until no row has a request; returns the codes of the requests in these rows from here on."""
        codes, ended = {row: [self.codes.new_zeros(0, self.codes.shape[1]).cpu()] for row in rows}, dict.fromkeys(rows, False)
        while found := self.step():
            for row, frame in found.items():
                if frame.codes is not None:
                    codes[row].append(frame.codes[None])
                ended[row] = frame.ended
        return [DecodedCodes(torch.cat(codes[row]), ended[row]) for row in rows]

    def _describe(self, row: _Row, codes: Tensor, ended: int, is_end: int) -> RowFrame:
        row.count += 1
        if is_end:
            return RowFrame(None, over=True, ended=True)
        return RowFrame(codes, bool(ended) or row.count >= row.limit, bool(ended))

    def _draw(self) -> None:
        """The next random numbers of each row: those of the next frame become those of this one."""
        self._drawn[0] = self._drawn[1]
        for number, row in self._rows.items():
            self._drawn[1, :, number] = row.random.random(len(self._drawn[1]))
        self.random.copy_(self._on_host, non_blocking=True)  # done when the codes of the frame have been read

    def _run(self, size: int) -> None:
        if self._graphs is None:
            self._run_and_count(size)
            return
        if self._captured_slots != self.cache.slots:  # the cache has grown, and so moved
            self._graphs.forget()
            self._captured_slots = self.cache.slots
        self._graphs.run(partial(self._run_and_count, size), (self.plan, size))

    def _run_and_count(self, size: int) -> None:
        self.run_frame(size)
        self.cache.lengths.add_(self.occupied * self._positions)
        self.frame.add_(self.occupied)
