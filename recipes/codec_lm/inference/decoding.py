"""Tokens of speech, frame by frame, with a static key/value cache.

Stock `generate` computes the scores of all 156,940 tokens at each step and calls the model through several layers of Python. Here a step
scores only the codes that can come next, and a frame is one sequence of tensor operations that never reads a value, so on CUDA it is
captured once and replayed. Where the stock output is well-formed, greedy tokens are the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from overtone.finetune.errors import UserError
from overtone.recipes.speech.decoding.cached_decoder_layers import CachedDecoderLayers
from overtone.recipes.speech.decoding.continuous_batching import FrameBatch, RowFrame
from overtone.recipes.speech.decoding.per_row_sampling import RowSampling
from overtone.recipes.speech.decoding.ragged_kv_cache import RowCache, count_rows
from overtone.recipes.speech.decoding.token_sampling import CodeSampler

from ..model.sequence_layout import SpeechTokenIds

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODEL_TYPES = ("llama", "qwen3")
"""Model types whose layers `CachedDecoderLayers` computes, without factors on embeddings or logits."""


class SpeechTokenDecoder:
    """The parameters of a causal language model, arranged for decoding step by step."""

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, ids: SpeechTokenIds) -> None:
        """`model`: as transformers loads it. Raises `UserError` for an architecture that is not supported."""
        if model.config.model_type not in MODEL_TYPES:
            raise UserError(f"generation with a {model.config.model_type} is not supported; supported: {', '.join(MODEL_TYPES)}")
        self.ids = ids
        self.positions: int = model.config.max_position_embeddings
        self.layers = CachedDecoderLayers(model.get_decoder(), "Llama or Qwen3")
        self.table: Tensor = model.get_input_embeddings().weight
        self.head: Tensor = model.get_output_embeddings().weight
        self.heads, self.tables = self._split_by_slot(self.head), self._split_by_slot(self.table)
        """Rows of each slot's codes; slot 0 also has end of speech, as the last."""
        self.token_ids = self._split_by_slot(torch.arange(len(self.head), device=self.head.device))
        """Choice → token id, for each slot."""
        self.slot_of_codebook: list[int] = np.argsort(ids.slots).tolist()

    def _split_by_slot(self, rows: Tensor) -> list[Tensor]:
        """Split a tensor with one row per token by slot; returns views, except for slot 0."""
        first, *others = rows[self.ids.codes.start : self.ids.codes.stop].split(self.ids.codebook_size)
        return [torch.cat([first, rows[self.ids.end_of_speech][None]]), *others]


@dataclass(frozen=True)
class TokenSampler(CodeSampler):
    """The settings of a request."""

    constrained: bool = True
    """True: only the codes that can come next are candidates. The requests that are in a batch at once must agree."""


class SpeechTokenBatch(FrameBatch[RowCache, Sequence[int], TokenSampler]):
    """Speech of up to so many requests at once, from the token ids of their prompts.

    A choice is the number of a token among those of its slot, so the code; in slot 0 there is one more, end of speech. `codes` has them in
    the codec's order.
    """

    @torch.inference_mode()
    def __init__(self, decoder: SpeechTokenDecoder, requests: int) -> None:
        cache, codebooks, device = RowCache(decoder.layers, count_rows(requests)), len(decoder.ids.slots), decoder.head.device
        self.decoder, self.sampling = decoder, RowSampling(cache.rows, device)
        super().__init__(cache, self.sampling, requests, codebooks, decoder.positions, positions=codebooks)
        self.first = torch.zeros(cache.rows, dtype=torch.int64, device=device)
        """[rows]: the choice for slot 0 of the next frame."""
        self._generated = torch.zeros(cache.rows, len(decoder.head), dtype=torch.bool, device=device)
        self._constrained = True
        self._stray = torch.full_like(self.first, -1)
        """[rows]: the last token that was no code of its slot; -1: there was none."""

    @property
    def ended(self) -> Tensor:
        """[rows] bool: rows whose next token is end of speech."""
        return self.first == self.decoder.ids.codebook_size

    @property
    def plan(self) -> Hashable:
        """Implements `FrameBatch`."""
        return self.sampling.plan, self._constrained

    def find_ends(self, codes: Tensor) -> Tensor:
        """[…, codebooks] → […] bool: slot 0 is end of speech."""
        return codes[..., self.decoder.ids.slots[0]] == self.decoder.ids.codebook_size

    @torch.inference_mode()
    def join(self, prompt: Sequence[int], sampler: TokenSampler, seed: int, limit: int) -> int:
        """Implements `FrameBatch`. Raises `UserError` also for a request that differs from the running ones in `constrained`."""
        if sampler.constrained != self._constrained and self.is_running:
            raise UserError("--unconstrained is not possible in one batch with requests that are constrained; remove the option")
        self._constrained = sampler.constrained
        ids = torch.tensor(prompt, device=self.decoder.table.device)
        row, state = self.take_row(F.embedding(ids, self.decoder.table), sampler, seed, limit)
        self._generated[row] = False
        self._generated[row, ids] = True  # as in transformers, the penalty is also for tokens of the prompt
        self._stray[row] = -1
        # All rows are computed, as in a frame, so that the choice has the same arithmetic; the other rows keep their state.
        stray = self._stray.clone()
        choice = self._choose(state.expand(self.cache.rows, -1), 0, self.random[1, 0])[row]
        stray[row] = self._stray[row]
        self._stray.copy_(stray)
        self.first[row] = choice
        self._generated[row, self.decoder.token_ids[0][choice]] = True
        return row

    def step(self) -> dict[int, RowFrame]:
        """Implements `FrameBatch`. Raises `UserError` if a token was no code of its slot, which only happens without the constraint."""
        found = super().step()
        if not self._constrained:
            tokens = self._stray.tolist()
            stray = [tokens[row] for row, frame in found.items() if frame.codes is not None and tokens[row] >= 0]
            if stray:
                raise UserError(
                    f"--unconstrained: the model produced token {stray[0]} where a code was expected; remove the option, so that only "
                    "codes are chosen, or train longer"
                )
        return found

    def run_frame(self, size: int) -> None:
        """One frame, and the choice for slot 0 of the next one."""
        decoder, choices, (now, following) = self.decoder, [self.first.clone()], self.random
        slots = len(decoder.ids.slots)
        for slot, window in enumerate(self.cache.make_windows(slots, size)):
            hidden = decoder.layers(F.embedding(choices[-1], decoder.tables[slot])[:, None], self.cache.store, window)[:, -1]
            if slot + 1 < slots:
                choices.append(self._choose_and_note(hidden, slot + 1, now[slot + 1]))
        self.codes.copy_(torch.stack([choices[slot] for slot in decoder.slot_of_codebook], 1))
        self.first.copy_(self._choose_and_note(hidden, 0, following[0]))

    def _choose_and_note(self, hidden: Tensor, slot: int, random: Tensor) -> Tensor:
        """`_choose`, and the choices as generated tokens."""
        choice = self._choose(hidden, slot, random)
        if self.sampling.penalizes:
            self._generated.scatter_(1, self.decoder.token_ids[slot][choice][:, None], True)
        return choice

    def _choose(self, hidden: Tensor, slot: int, random: Tensor) -> Tensor:
        """States [rows, H], random numbers [rows] → the choice for a slot [rows]."""
        token_ids = self.decoder.token_ids[slot]
        scores = F.linear(hidden, self.decoder.heads[slot] if self._constrained else self.decoder.head).float()
        if self.sampling.penalizes:
            scores = self.sampling.penalize_repetition(scores, self._generated[:, token_ids] if self._constrained else self._generated)
        choice = self.sampling.choose(scores, random)
        if self._constrained:
            return choice
        matches = choice[:, None] == token_ids
        self._stray.copy_(torch.where(matches.any(1), self._stray, choice))
        return matches.int().argmax(1)
