"""The request queue that speech and chat servers share: it passes requests to the running batches and counts how each one ended."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Generic

from .continuous_batch_scheduler import BatchScheduler, DeadlineError, QueueFullError, ServerClosedError
from .prometheus_metrics import ServerMetrics
from .running_batch_interface import Piece, Request, RunningBatch, StepProgress

OUTCOME_OF_ERROR = {ServerClosedError: "shutting_down", QueueFullError: "queue_full", DeadlineError: "deadline"}


class RequestQueue(Generic[Request, Piece]):
    """Owns the thread that generates, until `close`. Must be used in a single event loop."""

    def __init__(
        self,
        lanes: Mapping[str, RunningBatch[Request, Piece]],
        metrics: ServerMetrics,
        room: int,
        deadline_seconds: float,
        typed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`lanes`: the running batch of each model. `metrics`: the metrics of a server of these models. `room`: maximum number of waiting
        requests of each model. `deadline_seconds`: longest time from a request to the end of its result. `typed`: other names of the
        models."""
        self.deadline_seconds, self.typed, self.metrics = deadline_seconds, typed, metrics
        self.names = tuple(lanes)
        """Names of the models."""
        self._scheduler = BatchScheduler[Request, Piece](lanes, metrics, room)
        metrics.queue_depth.set_function(lambda: self.pending)
        metrics.queue_limit.set(room)

    @property
    def room(self) -> int:
        """Maximum number of waiting requests of each model."""
        return self._scheduler.room

    @property
    def slots(self) -> int:
        """Number of requests that all models generate at once."""
        return self._scheduler.count_slots()

    @property
    def pending(self) -> int:
        """Requests that wait or are in a batch."""
        return self._scheduler.pending

    @property
    def draining(self) -> bool:
        """True if new requests are refused, while accepted ones are completed."""
        return self._scheduler.draining

    async def generate(self, model: str, request: Request, client: str) -> AsyncGenerator[StepProgress[Piece], None]:
        """The progress of a request until it is over. Closing or cancelling the iterator frees the request's place in the batch.

        Clients take turns. Raises `QueueFullError` at the first step if the queue is full, `ServerClosedError` if the server is shutting
        down, `DeadlineError` if the result was not complete in time, and every error of the model.
        """
        began, has_begun, outcome = time.monotonic(), False, "cancelled"
        steps = self._scheduler.generate(model, request, client, self.deadline_seconds)
        try:
            async with aclosing(steps):
                async for progress in steps:
                    if progress.over is not None:
                        outcome = "completed"
                    if progress.piece is not None and not has_begun:
                        self.metrics.first_part_seconds.labels(model).observe(time.monotonic() - began)
                        has_begun = True
                    yield progress
        except Exception as error:
            outcome = OUTCOME_OF_ERROR.get(type(error), "failed")
            raise
        finally:
            self.metrics.requests.labels(model, outcome).inc()

    def refuse_new(self) -> None:
        """Refuse new requests from now on; those in the queue are completed."""
        self._scheduler.refuse_new()

    def fail_waiting(self) -> None:
        """Stop generating after the current step: the requests that are not complete fail with `ServerClosedError`."""
        self._scheduler.close()

    def close(self) -> None:
        """End the thread. Must be the last call, since a subclass also releases its models."""
        self.fail_waiting()
