"""Continuous batching: one thread runs the batches of all models, and requests join and leave them between steps.

    arrival ──▶ fair queue of the model ──▶ slot of its running batch ──▶ pieces ──▶ the client reads

A client that disconnects frees its slot at the next step. A client that reads slowly holds only its own pieces: the thread never waits for
a client, and a request leaves the queue when it is generated, not when it is read. A request that is not complete at its deadline is
stopped. No client fills the queue alone: a full queue gives the last place of the client that has most of them to a client with fewer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic

from overtone.finetune.terminal import print_diagnostic

from .fair_queue import FairQueue
from .prometheus_metrics import ServerMetrics
from .running_batch_interface import Piece, Request, RunningBatch, StepProgress


class QueueFullError(Exception):
    """The queue is full."""


class ServerClosedError(Exception):
    """The server is shutting down; the result is incomplete."""


class DeadlineError(Exception):
    """The request was not complete at its deadline."""


class CutOffError(Exception):
    """A result that the model did not end was cut off at a limit."""


@dataclass(eq=False)
class _Job(Generic[Request, Piece]):
    """A request that was accepted. The thread owns `slot`; the event loop owns the other fields."""

    model: str
    client: str
    request: Request
    loop: asyncio.AbstractEventLoop
    on_end: Callable[[], None]
    """Called in the event loop when the request is over, even if the client has not read its result yet."""
    news: asyncio.Queue[StepProgress[Piece] | Exception] = field(default_factory=asyncio.Queue)
    slot: int | None = None
    is_open: bool = True
    """True while the request waits or is being generated."""

    def deliver(self, one: StepProgress[Piece] | Exception) -> None:
        """Pass progress or an error from the thread to the event loop."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended, so there are no clients
            self.loop.call_soon_threadsafe(self.receive, one)

    def receive(self, one: StepProgress[Piece] | Exception) -> None:
        """Queue progress or an error for the client. Must be called in the event loop."""
        self.news.put_nowait(one)
        if isinstance(one, Exception) or one.over is not None:
            self.end()

    def end(self) -> None:
        """Mark the request as over. A second call does nothing."""
        if self.is_open:
            self.is_open = False
            self.on_end()


@dataclass
class _Lane(Generic[Request, Piece]):
    """The requests of one model."""

    batch: RunningBatch[Request, Piece]
    waiting: FairQueue[_Job[Request, Piece]] = field(default_factory=FairQueue)
    running: dict[int, _Job[Request, Piece]] = field(default_factory=dict)
    """Slot → request."""


class BatchScheduler(Generic[Request, Piece]):
    """Owns the thread that generates, until `close`. `generate` must be called in a single event loop."""

    def __init__(self, batches: Mapping[str, RunningBatch[Request, Piece]], metrics: ServerMetrics, room: int) -> None:
        """`metrics`: counts the steps of each batch, and the time that they and the beginnings of requests take. `room`: maximum number
        of waiting requests of each model, besides those in its batch."""
        self.room, self.metrics = room, metrics
        self.draining = False
        """True if new requests are refused, while accepted ones are completed."""
        self._lanes: dict[str, _Lane[Request, Piece]] = {name: _Lane(batch) for name, batch in batches.items()}
        self._accepted = dict.fromkeys(batches, 0)
        self._closing = False
        self._changed = threading.Condition()
        self._left: list[_Job[Request, Piece]] = []
        """Requests that the thread must stop. `_changed` guards them, like the queues."""
        self._thread = threading.Thread(target=self._run, name="generation", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """The number of requests that wait or are being generated. A finished one does not count, even if its client has not read it."""
        return sum(self._accepted.values())

    def count_slots(self) -> int:
        """Return how many requests all models together can generate at once."""
        return sum(lane.batch.slots for lane in self._lanes.values())

    async def generate(self, model: str, request: Request, client: str, seconds: float) -> AsyncGenerator[StepProgress[Piece], None]:
        """Yield the progress of a request until it is over. Closing or cancelling the iterator frees its slot at the next step.

        `client`: the client whose turn the request takes. `seconds`: time until its deadline. Raises `QueueFullError` before any progress
        if the queue is full, also later if a client with fewer requests takes the place; `ServerClosedError` if the server is shutting
        down; `DeadlineError`; and every error of the model.
        """
        job = self._accept(model, request, client)
        deadline = job.loop.time() + seconds
        try:
            while True:
                async with asyncio.timeout_at(deadline):
                    one = await job.news.get()
                if isinstance(one, Exception):
                    raise one
                yield one
                if one.over is not None:
                    return
        except TimeoutError:
            raise DeadlineError(f"the request was not complete after {seconds:g} s; retry later") from None
        finally:
            if job.is_open:
                job.end()
                self._stop(job)

    def _accept(self, model: str, request: Request, client: str) -> _Job[Request, Piece]:
        """Put a request into the queue, if necessary in place of another client's request. Raises the errors of `generate`."""
        lane = self._lanes[model]

        def count_end() -> None:
            self._accepted[model] -= 1

        job = _Job[Request, Piece](model, client, request, asyncio.get_running_loop(), count_end)
        with self._changed:
            if self.draining:
                raise ServerClosedError("the server is shutting down")
            if self._accepted[model] >= lane.batch.slots + self.room:
                refusal = QueueFullError(f"Queue full ({self._accepted[model]} pending); retry in a few seconds")
                displaced = lane.waiting.displace(client)
                if displaced is None:
                    raise refusal
                displaced.receive(refusal)
            self._accepted[model] += 1
            lane.waiting.put(client, job)
            self._changed.notify()
        return job

    def refuse_new(self) -> None:
        """Refuse new requests from now on; accepted ones are completed."""
        self.draining = True

    def close(self) -> None:
        """Stop after the current step; requests that are not complete fail."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _stop(self, job: _Job[Request, Piece]) -> None:
        with self._changed:
            if not self._lanes[job.model].waiting.remove(job.client, job):
                self._left.append(job)
                self._changed.notify()

    def _run(self) -> None:
        try:
            self._generate_until_closed()
        except BaseException as error:  # else all clients would wait for a thread that is gone, and `/health` would not say so
            with self._changed:
                self.draining = True
                self._fail_all(ServerClosedError(f"generation ended with {type(error).__name__}: {error}; restart the server"))
            raise

    def _generate_until_closed(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._closing:
                    self._fail_all(ServerClosedError("the server is shutting down"))
                    return
                left, self._left = self._left, []
            for job in left:
                self._free(job)
            for name, lane in self._lanes.items():
                self._admit(name, lane)
                if lane.running:
                    self._step(name, lane)

    def _has_work(self) -> bool:
        return self._closing or bool(self._left) or any(lane.running or len(lane.waiting) for lane in self._lanes.values())

    def _free(self, job: _Job[Request, Piece]) -> None:
        lane = self._lanes[job.model]
        if job.slot is not None and lane.running.get(job.slot) is job:
            del lane.running[job.slot]
            self._leave(lane, job.slot)

    def _leave(self, lane: _Lane[Request, Piece], slot: int) -> None:
        """Free a slot of the model. An error of the model is reported and does not end the thread, on which all other requests depend."""
        try:
            lane.batch.leave(slot)
        except Exception as error:
            print_diagnostic(f"slot {slot} could not be freed: {type(error).__name__}: {error}")

    def _admit(self, name: str, lane: _Lane[Request, Piece]) -> None:
        """Let one request join. Only one joins per step, so that running requests continue in between and do not wait for many new ones to
        start."""
        while len(lane.running) < lane.batch.slots:
            with self._changed:
                if not len(lane.waiting):
                    return
                job = lane.waiting.take()
            began = time.monotonic()
            try:
                job.slot = lane.batch.join(job.request)
            except Exception as error:
                job.deliver(error)
                continue
            finally:
                self.metrics.generation_seconds.labels(name).inc(time.monotonic() - began)
            lane.running[job.slot] = job
            return

    def _step(self, name: str, lane: _Lane[Request, Piece]) -> None:
        began = time.monotonic()
        self.metrics.batch_steps.labels(name).inc()
        self.metrics.batch_requests.labels(name).inc(len(lane.running))
        try:
            found = lane.batch.step()
        except Exception as error:  # of the model as a whole: which request caused it is unknown
            failed = dict(lane.running)
            lane.running.clear()
            for job in failed.values():  # first: `leave` may fail as well, and nobody may wait for a request that is gone
                job.deliver(error)
            for slot in failed:
                self._leave(lane, slot)
            return
        finally:
            self.metrics.generation_seconds.labels(name).inc(time.monotonic() - began)
        for slot, progress in found.items():
            job = lane.running[slot]
            if progress.over is not None or progress.failure is not None:
                del lane.running[slot]
            if progress.failure is not None:
                job.deliver(progress.failure)
            elif progress.piece is not None or progress.over is not None:
                job.deliver(progress)

    def _fail_all(self, error: Exception) -> None:
        for lane in self._lanes.values():
            for job in lane.running.values():
                job.deliver(error)
            while len(lane.waiting):
                lane.waiting.take().deliver(error)
