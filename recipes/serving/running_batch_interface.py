"""The interface between the scheduler and a model that generates for several requests at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Request = TypeVar("Request")
RequestIn = TypeVar("RequestIn", contravariant=True)
Piece = TypeVar("Piece")
PieceOut = TypeVar("PieceOut", covariant=True)

STOP, LENGTH = "stop", "length"
"""Reasons for the end of a request: its natural end, or a limit. The names are OpenAI's."""


@dataclass(frozen=True)
class StepProgress(Generic[PieceOut]):
    """The result of a step for one request."""

    piece: PieceOut | None = None
    """The next part of the result, if there is one already."""
    over: str | None = None
    """`STOP` or `LENGTH` after the last piece; the request has then left the batch."""
    failure: Exception | None = None
    """The error that ends this request alone; the request has then left the batch."""


class RunningBatch(Protocol[RequestIn, PieceOut]):
    """Requests that are generated together. They join and leave between steps. Must be used by a single thread.

    The result of a request does not depend on the other requests in the batch.
    """

    @property
    def slots(self) -> int:
        """The maximum number of requests at once."""

    def join(self, request: RequestIn) -> int:
        """Start a request in a free slot, and return the slot. Raises `UserError` for one that cannot be generated."""

    def step(self) -> Mapping[int, StepProgress[PieceOut]]:
        """Generate the next frame or token of every request, and return the progress by slot."""

    def leave(self, slot: int) -> None:
        """Stop the request in a slot, which becomes free. Does nothing for a free slot."""


class OneAtATime(Generic[Request, Piece]):
    """A `RunningBatch` with one slot, for a model that can only generate one request at a time."""

    slots = 1

    def __init__(self, generate: Callable[[Request], Iterator[Piece]]) -> None:
        """`generate`: the pieces of a request; closing the iterator stops it. A generator may return `STOP` or `LENGTH`."""
        self._generate = generate
        self._current: Iterator[Piece] | None = None

    def join(self, request: Request) -> int:
        """Implements `RunningBatch`."""
        self._current = self._generate(request)
        return 0

    def step(self) -> dict[int, StepProgress[Piece]]:
        """Implements `RunningBatch`."""
        if self._current is None:
            return {}
        try:
            return {0: StepProgress(next(self._current))}
        except StopIteration as end:
            self._current = None
            return {0: StepProgress(None, LENGTH if isinstance(end.value, str) and end.value == LENGTH else STOP)}

    def leave(self, slot: int) -> None:  # noqa: ARG002  # there is only one
        """Implements `RunningBatch`."""
        current, self._current = self._current, None
        if current is not None and hasattr(current, "close"):
            current.close()
