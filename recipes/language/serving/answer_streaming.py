"""Answers of a loaded model, one after another: for `generate`, `chat` and programs, and for a server that takes one request at a time."""

from __future__ import annotations

from collections.abc import Generator

import torch

from overtone.finetune.errors import UserError
from overtone.finetune.terminal import print_diagnostic
from overtone.recipes.language.answer_generation import LoadedModel, check_length, derive_seed
from overtone.recipes.language.text_generator import COLDEST, AnswerSettings
from overtone.recipes.speech.decoding.cuda_graphs import FrameGraphs
from overtone.recipes.speech.decoding.token_sampling import CodeSampler

from .batching_compatibility import find_obstacle
from .chat_batch import AnswerPiece, AnswerRequest, ChatBatch
from .single_answer_generation import stream_answer


class AnswerStreamer:
    """Owns the cache and the captured steps of a model's answers. For one answer at a time.

    On a GPU the steps are those of a running batch of one row, which CUDA graphs replay from answer to answer. Where there are no graphs,
    and for models that cannot batch, transformers' own generation answers. Both choose the same tokens.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        has_graphs = FrameGraphs.open(loaded.model.device) is not None
        self._batch = ChatBatch(loaded, 1, None, loaded.positions) if has_graphs and find_obstacle(loaded.model) is None else None

    def stream(self, request: AnswerRequest) -> Generator[AnswerPiece, None, str]:
        """The pieces of an answer while it is generated; returns `STOP` or `LENGTH`. Closing the generator stops the model."""
        if self._batch is None:
            return (yield from stream_answer(self.loaded, request))
        try:
            slot = self._batch.join(request)
        except torch.OutOfMemoryError:  # the cache has room for the longest answer, that of transformers grows with the answer
            print_diagnostic(f"no memory for a cache of {request.limit:,} new tokens; generating without it, which is slower")
            return (yield from stream_answer(self.loaded, request))
        try:
            while True:
                progress = self._batch.step()[slot]
                if progress.piece is not None:
                    yield progress.piece
                if progress.over is not None:
                    return progress.over
        finally:
            self._batch.leave(slot)


def make_request(loaded: LoadedModel, ids: list[int], settings: AnswerSettings, number: int = 0) -> AnswerRequest:
    """The request for the answer to a prompt. `number`: that of the prompt in its file or of the turn in a conversation; each has its own
    random numbers. Raises `UserError` as `check_length`, and for a temperature that is too low."""
    check_length(ids, loaded)
    temperature = settings.sampling_temperature
    if 0 < temperature < COLDEST:
        raise UserError(f"--temperature {temperature:g} is above 0 and below {COLDEST:g}; use 0, which takes the most likely token")
    limit = settings.max_new_tokens if loaded.positions is None else min(settings.max_new_tokens, loaded.positions - len(ids))
    sampler = CodeSampler(greedy=True) if temperature == 0 else CodeSampler(False, temperature, top_p=settings.top_p or 1.0)
    return AnswerRequest(ids, sampler, derive_seed(settings.seed, number), limit)
