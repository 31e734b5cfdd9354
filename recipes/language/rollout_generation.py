"""Generates answers from the current weights of a training run, in a running batch, with the log-probability of each token.

The generator has a copy of the model in transformers' own class. The answer to a request depends on the weights and the request alone, not
on the others in the batch: `ragged_transformers_cache` has the arithmetic and its limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from overtone.finetune.errors import UserError
from overtone.recipes.current_weights import allocate_weights, copy_weights
from overtone.recipes.language.modeling.causal_model import build_stock
from overtone.recipes.language.serving.batching_compatibility import find_config_obstacle, find_obstacle
from overtone.recipes.language.serving.continuous_batching import TokenBatch
from overtone.recipes.language.serving.ragged_transformers_cache import StockRowCache
from overtone.recipes.speech.decoding.token_sampling import CodeSampler

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SAMPLED, GREEDY = CodeSampler(greedy=False), CodeSampler(greedy=True)
"""Answers are drawn from the model's own distribution, with nothing cut off, so that the log-probabilities are those of the policy."""


@dataclass(frozen=True)
class RolloutRequest:
    """A prompt to answer once."""

    prompt: list[int]
    """Token ids."""
    seed: int
    greedy: bool = False


@dataclass
class GeneratedTokens:
    """An answer."""

    ids: list[int] = field(default_factory=list)
    """With the token that ended it."""
    scores: list[float] = field(default_factory=list)
    """Log-probability of each token in nats."""
    ended: bool = False
    """False: it was cut off."""


class RolloutGenerator:
    """Owns a copy of the model and its running batch."""

    def __init__(
        self, base: Path, buffers: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device, stop_ids: Sequence[int], slots: int
    ) -> None:
        """`buffers`: values of persistent buffers. `slots`: maximum number of answers at once. The copy has no weights until
        `update_weights`."""
        self._base, self._stop_ids, self._slots = base, stop_ids, slots
        self._model = make_empty_copy(base, buffers, dtype, device)
        self._batch: _ScoredBatch | None = None

    @torch.no_grad()
    def update_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take over the weights. Raises `UserError` for a model whose requests cannot share a batch."""
        copy_weights(weights, self._model, self._base)
        if self._batch is None:
            refuse_obstacle(self._base, find_obstacle(self._model))
            self._batch = _ScoredBatch(self._model, self._stop_ids, self._slots, None, RepeatedPromptCache)
        self._batch.cache.forget()

    def generate(self, requests: Sequence[RolloutRequest], longest: int) -> list[GeneratedTokens]:
        """Return the answer to each request, of at most `longest` tokens besides the one that ends it. Call `update_weights` before."""
        batch = self._batch
        assert batch is not None
        found = [GeneratedTokens() for _ in requests]
        waiting, running = deque(range(len(requests))), dict[int, GeneratedTokens]()
        if requests:
            batch.reserve([request.prompt for request in requests], longest)
        while waiting or running:
            while waiting and len(running) < self._slots:
                number = waiting.popleft()
                request = requests[number]
                row = batch.join(request.prompt, GREEDY if request.greedy else SAMPLED, request.seed, longest)
                running[row] = found[number]
            for row, (tokens, scores, over, ended) in batch.step_with_scores().items():
                running[row].ids += tokens
                running[row].scores += scores
                if over:
                    running.pop(row).ended = ended
        return found


class RepeatedPromptCache(StockRowCache):
    """Reads a prompt once for requests with the same prompt that join one after the other."""

    _last: tuple[Tensor, Tensor, list[Any]] | None = None

    def _read(self, ids: Tensor) -> tuple[Tensor, list[Any]]:
        if self._last is None or not torch.equal(self._last[0], ids):
            self._last = (ids.clone(), *super()._read(ids))
        return self._last[1], self._last[2]

    def forget(self) -> None:
        """Forget the last prompt, whose keys are those of other weights."""
        self._last = None


class _ScoredBatch(TokenBatch):
    """A running batch that keeps the log-probability of each token."""

    cache: RepeatedPromptCache

    @torch.inference_mode()
    def join(self, prompt: Sequence[int], sampler: CodeSampler, seed: int, limit: int) -> int:
        """Implements `FrameBatch`."""
        row, scores = self.take_row(torch.tensor(prompt, device=self.codes.device), sampler, seed, limit)
        whole = scores.expand(self.cache.rows, -1)
        self._choose(whole, torch.arange(self.cache.rows, device=self.codes.device) == row)
        return row

    def run_frame(self, size: int) -> None:
        """Take the tokens that were chosen before, and choose the next ones."""
        self.codes[:, 0] = self.first
        self.scores[0].copy_(self.scores[1])
        self._choose(self.cache.read_tokens(self.first, size), self._all)

    @torch.inference_mode()
    def step_with_scores(self) -> dict[int, tuple[list[int], list[float], bool, bool]]:
        """One token of every row: row → (new tokens, with the one that ends the answer; their log-probabilities; whether the answer is
        over; whether it has ended)."""
        frames = self.step()
        last, following = self.scores.tolist()
        codes, first = self.codes[:, 0].tolist(), self.first.tolist()
        found: dict[int, tuple[list[int], list[float], bool, bool]] = {}
        for row, frame in frames.items():
            ends = frame.over and frame.ended and frame.codes is not None  # the next token ends the answer, and no step takes it
            tokens = [codes[row], first[row]] if ends else [codes[row]]
            found[row] = tokens, [last[row], following[row]][: len(tokens)], frame.over, frame.ended
        return found

    @torch.inference_mode()
    def _choose(self, scores: Tensor, rows: Tensor) -> None:
        """Choose the next token of these rows [rows] bool from scores [rows, V], as `TokenBatch`, and note its log-probability."""
        chosen = self.sampling.choose(scores, self.random[1, 0])
        found = scores.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
        self.first.copy_(torch.where(rows, chosen, self.first))
        self.scores[1].copy_(torch.where(rows, found, self.scores[1]))

    @torch.inference_mode()
    def __init__(
        self, model: PreTrainedModel, stop_ids: Sequence[int], requests: int, context: int | None, cache: type[StockRowCache]
    ) -> None:
        super().__init__(model, stop_ids, requests, context, cache)
        self.scores = torch.zeros(2, self.cache.rows, device=self.codes.device)
        """[2, rows]: log-probability of the last token of each row, and of the next one."""
        self._all = torch.ones(self.cache.rows, dtype=torch.bool, device=self.codes.device)


def check_base(base: Path) -> None:
    """Raises `UserError` for a base whose config says that requests cannot share a batch. Reads no weights; what only they can show is
    found by the first `update_weights`."""
    refuse_obstacle(base, find_config_obstacle(build_stock(base, "sdpa").config.get_text_config()))


def refuse_obstacle(base: Path, obstacle: str | None) -> None:
    """Raises `UserError` if there is an obstacle to batches of the base."""
    if obstacle is not None:
        raise UserError(f"{base}: no answers can be generated while it is trained: {obstacle}; choose another model")


def make_empty_copy(base: Path, buffers: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Return transformers' own model in eval mode with weights of any value. `buffers`: values of persistent buffers by name."""
    whole = build_stock(base, "sdpa").eval()
    allocate_weights(whole, dtype, device)
    head: Any = whole.get_output_embeddings()
    if whole.config.get_text_config().tie_word_embeddings:  # moving to meta has untied them
        head.weight = whole.get_input_embeddings().weight
    for name, buffer in whole.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])
    return whole
