"""The requests of a chat server: models that batch answer several at once, others one at a time, and each way ends in the metrics."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType

from overtone.recipes.language.answer_generation import LoadedModel
from overtone.recipes.serving.prometheus_metrics import ServerMetrics
from overtone.recipes.serving.request_queue import RequestQueue
from overtone.recipes.serving.running_batch_interface import OneAtATime, RunningBatch, StepProgress

from .answer_streaming import AnswerStreamer
from .batching_compatibility import find_obstacle
from .chat_batch import AnswerPiece, AnswerRequest, ChatBatch

AnswerLane = RunningBatch[AnswerRequest, AnswerPiece]
AnswerProgress = StepProgress[AnswerPiece]


@dataclass(frozen=True)
class ServedModel:
    """A model, and the limits of its requests."""

    loaded: LoadedModel
    created: int
    """Unix time of the export."""
    context: int
    """Maximum tokens of a prompt and its answer together."""
    longest: int
    """Maximum tokens of an answer."""


class ChatQueue(RequestQueue[AnswerRequest, AnswerPiece]):
    """Owns the thread that generates answers, until `close`. For one event loop."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        lanes: Mapping[str, AnswerLane],
        room: int,
        deadline_seconds: float,
        typed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`lanes`: the running batch of each model (`open_lane`). `room`: most requests of a model that wait. `deadline_seconds`: longest
        time to a complete answer. `typed`: other names of the models."""
        results = {"prompt_tokens": "Tokens of the prompts of accepted requests.", "answer_tokens": "Tokens of their answers."}
        metrics = ServerMetrics("chat", "text", frozenset({"/v1/chat/completions"}), models, results)
        super().__init__(lanes, metrics, room, deadline_seconds, typed)
        self.models = models

    async def answer(self, model: str, request: AnswerRequest, client: str = "") -> AsyncGenerator[AnswerProgress, None]:
        """The parts of an answer while they are generated, as `generate`. Counts its tokens."""
        answer_tokens, tokens = self.metrics.results["answer_tokens"].labels(model), 0
        self.metrics.results["prompt_tokens"].labels(model).inc(len(request.prompt))
        async with aclosing(self.generate(model, request, client)) as steps:
            async for progress in steps:
                if progress.piece is not None:
                    answer_tokens.inc(progress.piece.tokens - tokens)
                    tokens = progress.piece.tokens
                yield progress


def find_batching_obstacle(loaded: LoadedModel, slots: int) -> str | None:
    """Return why this model answers one request at a time; None if requests join a running batch."""
    return "--batch 1" if slots == 1 else find_obstacle(loaded.model)


def open_lane(model: ServedModel, slots: int, obstacle: str | None) -> AnswerLane:
    """The running batch of a model; one request at a time if there is an obstacle."""
    if obstacle is None:
        return ChatBatch(model.loaded, slots, model.longest, model.context)
    return OneAtATime[AnswerRequest, AnswerPiece](AnswerStreamer(model.loaded).stream)
