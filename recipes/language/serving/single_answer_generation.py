"""One answer at a time by transformers' `generate` in a thread, for models that cannot batch. The tokens are those that
`chat_batch.ChatBatch` chooses."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from overtone.recipes.language.answer_generation import LoadedModel, make_generation_config
from overtone.recipes.serving.running_batch_interface import LENGTH, STOP
from overtone.recipes.speech.decoding.token_sampling import CodeSampler

from .chat_batch import AnswerPiece, AnswerRequest
from .incremental_detokenizer import AnswerText


def stream_answer(loaded: LoadedModel, request: AnswerRequest) -> Generator[AnswerPiece, None, str]:
    """The pieces of one answer by transformers' own generation, which works for every model; returns `STOP` or `LENGTH`."""
    answer, over = AnswerText(loaded.tokenizer, request.stops), LENGTH
    tokens = generate_tokens(loaded, request)
    try:
        for token in tokens:
            if token in loaded.stop_ids:
                over = STOP
                break
            if (text := answer.add(token)) or answer.stopped:
                yield AnswerPiece(text, answer.tokens)
            if answer.stopped:
                return STOP
    finally:
        tokens.close()
    text = answer.finish()
    yield AnswerPiece(text, answer.tokens + (over == STOP and not answer.stopped))
    return STOP if answer.stopped else over


def generate_tokens(loaded: LoadedModel, request: AnswerRequest) -> Generator[int, None, None]:
    """The tokens of one answer, with the one that ends it, as soon as they are chosen. Closing the generator stops the model."""
    news, closed = queue.Queue[int | BaseException | None](), threading.Event()
    thread = threading.Thread(target=_generate, args=(loaded, request, news, closed), name="one answer", daemon=True)
    thread.start()
    try:
        while (one := news.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one
    finally:
        closed.set()
        thread.join()


def _generate(loaded: LoadedModel, request: AnswerRequest, news: queue.Queue[int | BaseException | None], closed: threading.Event) -> None:
    """Body of the thread. `news`: the tokens, and then None or the error."""
    given = torch.tensor([request.prompt], device=loaded.model.device)
    # As the model's own config: arguments of `generate` would be merged with the settings of the base (sampling, penalties).
    loaded.model.generation_config = make_generation_config(request.limit, loaded.stop_ids)
    try:
        with torch.inference_mode():
            loaded.model.generate(
                given,
                attention_mask=torch.ones_like(given),
                logits_processor=LogitsProcessorList([_SeededChoice(request.sampler, request.seed)]),
                stopping_criteria=StoppingCriteriaList([_StopWhenClosed(closed)]),
                streamer=_TokenStreamer(news),
            )
        news.put(None)
    except BaseException as error:  # raised in the thread that reads
        news.put(error)


class _SeededChoice(LogitsProcessor):
    """Leaves only the token that the request's own sampler and random numbers choose, as `continuous_batching.TokenBatch` does."""

    def __init__(self, sampler: CodeSampler, seed: int) -> None:
        self._sampler, self._random = sampler, np.random.Generator(np.random.Philox(seed))

    def __call__(self, input_ids: Any, scores: Any) -> Any:  # noqa: ARG002
        """Scores [1, V] → the same shape, -inf for all other tokens."""
        random = torch.from_numpy(self._random.random(1)).to(scores.device)
        choice = self._sampler.choose(scores.float(), random)
        return torch.full_like(scores, -torch.inf).scatter_(1, choice[:, None], 0.0)


class _StopWhenClosed(StoppingCriteria):
    def __init__(self, closed: threading.Event) -> None:
        self._closed = closed

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:  # noqa: ARG002
        return torch.full((len(input_ids),), self._closed.is_set(), device=input_ids.device)


class _TokenStreamer(BaseStreamer):
    """Passes the generated tokens on; transformers puts the prompt first."""

    def __init__(self, news: queue.Queue[int | BaseException | None]) -> None:
        self._news, self._is_prompt = news, True

    def put(self, value: Tensor) -> None:
        """Implements `BaseStreamer`."""
        if not self._is_prompt:
            self._news.put(int(value))
        self._is_prompt = False

    def end(self) -> None:
        """Implements `BaseStreamer`; `_generate` reports the end."""
