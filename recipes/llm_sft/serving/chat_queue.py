"""The requests of a chat server: models that batch answer several at once, others one at a time, and each way ends in the metrics."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from recipes.serving.batch_scheduler import BatchScheduler
from recipes.serving.prometheus_metrics import name_outcome
from recipes.serving.running_batch import OneAtATime, RunningBatch, StepProgress

from ..generation import LoadedModel
from .batching_compatibility import find_obstacle
from .chat_batch import AnswerPiece, AnswerRequest, ChatBatch, stream_answer
from .chat_metrics import ChatModelMetrics

AnswerLane = RunningBatch[AnswerRequest, AnswerPiece]
AnswerProgress = StepProgress[AnswerPiece]


@dataclass(frozen=True)
class ServedModel:
    """A model, and the limits of its requests."""

    loaded: LoadedModel
    created: int
    """Unix time of the export."""
    context: int
    """Most tokens of a prompt and its answer together."""
    longest: int
    """Most tokens of an answer."""


class ChatQueue:
    """Owns the thread that generates answers, until `close`. For one event loop."""

    def __init__(self, models: Mapping[str, ServedModel], lanes: Mapping[str, AnswerLane], room: int, deadline_seconds: float) -> None:
        """`lanes`: of each model, as of `open_lane`. `room`: maximum number of waiting requests of each model. `deadline_seconds`: longest
        time from a request to the end of its answer."""
        self.models, self.deadline_seconds = models, deadline_seconds
        self._scheduler = BatchScheduler[AnswerRequest, AnswerPiece](lanes, room)
        self.metrics = {name: ChatModelMetrics(self._scheduler.figures[name]) for name in models}

    @property
    def room(self) -> int:
        """Maximum number of waiting requests of each model."""
        return self._scheduler.room

    @property
    def pending(self) -> int:
        """Requests that wait or are answered."""
        return self._scheduler.pending

    @property
    def draining(self) -> bool:
        """Whether new requests are refused, while accepted ones are still answered."""
        return self._scheduler.draining

    async def answer(self, model: str, request: AnswerRequest, client: str = "") -> AsyncGenerator[AnswerProgress, None]:
        """The parts of an answer while they are generated. Closing or cancelling the iterator frees the request's place in the batch.

        Clients take turns. Raises as `BatchScheduler.generate`.
        """
        metrics, began, answered = self.metrics[model], time.monotonic(), False
        outcome = "cancelled"
        metrics.prompt_tokens += len(request.prompt)
        steps, tokens = self._scheduler.generate(model, request, client, self.deadline_seconds), 0
        try:
            async with aclosing(steps):
                async for progress in steps:
                    if progress.over is not None:
                        outcome = "completed"
                    if progress.piece is not None:
                        metrics.answer_tokens += progress.piece.tokens - tokens
                        tokens = progress.piece.tokens
                    if not answered:
                        metrics.observe_first(time.monotonic() - began)
                        answered = True
                    yield progress
        except Exception as error:
            outcome = name_outcome(error)
            raise
        finally:
            metrics.outcomes[outcome] += 1

    def refuse_new(self) -> None:
        """Refuse new requests from now on; those in the queue are answered."""
        self._scheduler.refuse_new()

    def close(self) -> None:
        """Stop after the current token, and fail the requests that are not complete."""
        self._scheduler.close()


def find_batching_obstacle(loaded: LoadedModel, slots: int) -> str | None:
    """Why this model answers one request at a time; None if requests join a running batch."""
    return "--batch 1" if slots == 1 else find_obstacle(loaded.model)


def open_lane(loaded: LoadedModel, slots: int, obstacle: str | None) -> AnswerLane:
    """The running batch of a model; one request at a time if there is an obstacle."""
    if obstacle is None:
        return ChatBatch(loaded, slots)
    stream: partial[Generator[AnswerPiece, None, str]] = partial(stream_answer, loaded)
    return OneAtATime[AnswerRequest, AnswerPiece](stream)
