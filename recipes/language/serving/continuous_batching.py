"""Tokens of answers that join and leave a running batch: frames of one code, chosen from the scores of the stock model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from overtone.finetune.terminal import print_diagnostic
from overtone.recipes.speech.decoding.continuous_batching import FrameBatch
from overtone.recipes.speech.decoding.per_row_sampling import RowSampling
from overtone.recipes.speech.decoding.ragged_kv_cache import count_rows
from overtone.recipes.speech.decoding.token_sampling import CodeSampler

from .batching_compatibility import find_graph_difference
from .ragged_transformers_cache import StockRowCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TokenBatch(FrameBatch[StockRowCache, Sequence[int], CodeSampler]):
    """Up to so many answers at once. A token that ends an answer is not generated: the row is over at the token before it."""

    unit: ClassVar[str] = "tokens"
    limit_option: ClassVar[str] = "--max-new-tokens"

    @torch.inference_mode()
    def __init__(
        self,
        model: PreTrainedModel,
        stop_ids: Sequence[int],
        requests: int,
        context: int | None = None,
        cache_class: type[StockRowCache] = StockRowCache,
    ) -> None:
        """`model`: one for which `find_obstacle` found nothing. `stop_ids`: tokens that end an answer. `context`: maximum tokens of a
        prompt and its answer; None: no limit."""
        difference = find_graph_difference(model)
        if difference is not None:
            print_diagnostic(
                f"{model.name_or_path or model.config.model_type}: answers are generated without CUDA graphs, which is slower: {difference}"
            )
        cache = cache_class(model, count_rows(requests))
        self.sampling = RowSampling(cache.rows, model.device)
        super().__init__(cache, self.sampling, requests, 1, context, captures=difference is None)
        self.first = torch.zeros(cache.rows, dtype=torch.int64, device=model.device)
        """[rows]: the next token."""
        self._stops = torch.tensor([*stop_ids], dtype=torch.int64, device=model.device)

    @property
    def ended(self) -> Tensor:
        """[rows] bool: rows whose next token ends the answer."""
        return torch.isin(self.first, self._stops)

    def find_ends(self, codes: Tensor) -> Tensor:
        """[…, 1] → […] bool."""
        return torch.isin(codes[..., 0], self._stops)

    @torch.inference_mode()
    def join(self, prompt: Sequence[int], sampler: CodeSampler, seed: int, limit: int) -> int:
        """Implements `FrameBatch`."""
        row, scores = self.take_row(torch.tensor(prompt, device=self.codes.device), sampler, seed, limit)
        # All rows are computed, as in a step, so that the choice has the same arithmetic; the other rows keep theirs.
        self.first[row] = self.sampling.choose(scores.expand(self.cache.rows, -1), self.random[1, 0])[row]
        return row

    def run_frame(self, size: int) -> None:
        """Take the tokens that were chosen before, and choose the next ones."""
        self.codes[:, 0] = self.first
        scores = self.cache.read_tokens(self.first, size)
        self.first.copy_(self.sampling.choose(scores, self.random[1, 0]))
