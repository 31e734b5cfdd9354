"""The answers of several requests in one running batch, piece by piece as text."""

from __future__ import annotations

from dataclasses import dataclass

from overtone.recipes.language.answer_generation import LoadedModel
from overtone.recipes.serving.running_batch_interface import LENGTH, STOP, StepProgress
from overtone.recipes.speech.decoding.continuous_batching import RowFrame
from overtone.recipes.speech.decoding.token_sampling import CodeSampler

from .continuous_batching import TokenBatch
from .incremental_detokenizer import AnswerText

CAPTURED = 1024
"""Answers up to this length are prepared for at start-up: room for more might not be needed, and takes memory."""

SETTINGS = (CodeSampler(False, top_p=0.5), CodeSampler(greedy=False), CodeSampler(greedy=True))
"""One sampler for each sequence of operations that a request's settings need."""


@dataclass(frozen=True)
class AnswerRequest:
    """A prompt to answer."""

    prompt: list[int]
    """Token ids, not empty."""
    sampler: CodeSampler
    seed: int
    limit: int
    """Maximum tokens of the answer; the model has positions for them."""
    stops: tuple[str, ...] = ()
    """The answer ends before the first of these texts."""


@dataclass(frozen=True)
class AnswerPiece:
    """The next part of an answer."""

    text: str
    tokens: int
    """Tokens that are generated so far, with the one that ended the answer."""


class ChatBatch:
    """Owns the answers in progress. Implements `RunningBatch`."""

    def __init__(self, loaded: LoadedModel, slots: int, longest: int | None, context: int | None) -> None:
        """`loaded`: a model for which `find_obstacle` found nothing. `longest`: maximum tokens of an answer; on a GPU, the steps of such
        answers, up to `CAPTURED` tokens, are captured now, with all settings that a request can have; None: each
        step is captured when a request needs it. `context`: as of `TokenBatch`."""
        self._tokenizer, self._batch = loaded.tokenizer, TokenBatch(loaded.model, loaded.stop_ids, slots, context)
        if longest is not None:
            for sampler in SETTINGS:
                self._batch.capture_frames(min(longest, CAPTURED), sampler)
        self._answers: dict[int, AnswerText] = {}

    @property
    def slots(self) -> int:
        """The maximum number of requests at once."""
        return self._batch.slots

    def join(self, request: AnswerRequest) -> int:
        """Implements `RunningBatch`."""
        row = self._batch.join_or_free(lambda: self._batch.join(request.prompt, request.sampler, request.seed, request.limit))
        self._answers[row] = AnswerText(self._tokenizer, request.stops)
        return row

    def step(self) -> dict[int, StepProgress[AnswerPiece]]:
        """Implements `RunningBatch`."""
        return {row: self._add(row, frame) for row, frame in self._batch.step().items()}

    def leave(self, slot: int) -> None:
        """Implements `RunningBatch`."""
        self._answers.pop(slot, None)
        self._batch.leave(slot)

    def _add(self, row: int, frame: RowFrame) -> StepProgress[AnswerPiece]:
        answer = self._answers[row]
        text = "" if frame.codes is None else answer.add(int(frame.codes[0]))
        if frame.over:
            text += answer.finish()
        tokens = answer.tokens + (frame.over and frame.ended and not answer.stopped)
        over = STOP if answer.stopped or (frame.over and frame.ended) else LENGTH if frame.over else None
        if over is not None:
            self.leave(row)
        return StepProgress(AnswerPiece(text, tokens) if text or over is not None else None, over)
