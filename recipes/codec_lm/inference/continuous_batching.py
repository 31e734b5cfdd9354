"""Tokens of speech for requests that join and leave between frames; `decoding` has the frame itself."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from overtone.finetune.errors import UserError
from overtone.recipes.speech.decoding.continuous_batching import FrameBatch
from overtone.recipes.speech.decoding.per_row_sampling import RowSampling
from overtone.recipes.speech.decoding.ragged_kv_cache import RowCache, count_rows
from overtone.recipes.speech.decoding.token_sampling import CodeSampler

from .decoding import SpeechTokenDecoder


class SpeechTokenBatch(FrameBatch[RowCache]):
    """Speech of up to so many requests at once, with the codes that `SpeechTokenSession` generates for each alone, with the constraint."""

    @torch.inference_mode()
    def __init__(self, decoder: SpeechTokenDecoder, requests: int) -> None:
        codebooks = len(decoder.ids.slots)
        super().__init__(RowCache(decoder.layers, count_rows(requests)), requests, codebooks, decoder.positions, positions=codebooks)
        rows, device = self.cache.rows, self.codes.device
        self.decoder, self.sampling = decoder, RowSampling(rows, device)
        self.first = torch.zeros(rows, dtype=torch.int64, device=device)
        """[rows]: the choice for slot 0 of the next frame."""
        self._generated = torch.zeros(rows, len(decoder.head), dtype=torch.bool, device=device)

    @property
    def ended(self) -> Tensor:
        """[rows] bool: rows whose next token is end of speech."""
        return self.first == self.decoder.ids.codebook_size

    @property
    def plan(self) -> Hashable:
        """Implements `FrameBatch`."""
        return self.sampling.plan

    def find_ends(self, codes: Tensor) -> Tensor:
        """[…, codebooks] → […] bool: slot 0 is end of speech."""
        return codes[..., self.decoder.ids.slots[0]] == self.decoder.ids.codebook_size

    @torch.inference_mode()
    def join(self, prompt: Sequence[int], sampler: CodeSampler, seed: int, max_frames: int) -> int:
        """The row of a new request. Generates at most `max_frames` frames, fewer if the positions run out. Raises `UserError` for a prompt
        that leaves no position."""
        decoder = self.decoder
        limit = min(max_frames, (decoder.positions - len(prompt)) // len(decoder.ids.slots))
        if limit < 1:
            raise UserError(f"a prompt of {len(prompt)} tokens fills the model's {decoder.positions} positions; shorten the text")
        ids = torch.tensor(prompt, device=decoder.table.device)
        row, state = self.take_row(F.embedding(ids, decoder.table), seed, limit)
        self.sampling.set_row(row, sampler)
        self._generated[row] = False
        self._generated[row, ids] = True  # as in transformers, the penalty is also for tokens of the prompt
        # All rows are computed, as in a frame, so that the choice has the same arithmetic; the other rows keep their state.
        hidden = state.expand(self.cache.rows, -1)
        choice = self._choose(hidden, 0, self.random[1, 0])[row]
        self.first[row] = choice
        self._generated[row, decoder.token_ids[0][choice]] = True
        return row

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
        scores = F.linear(hidden, self.decoder.heads[slot]).float()
        if self.sampling.penalizes:
            scores = self.sampling.penalize_repetition(scores, self._generated[:, self.decoder.token_ids[slot]])
        return self.sampling.choose(scores, random)
