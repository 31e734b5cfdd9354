"""Backbone and depth decoder for requests that join and leave between frames; `decoding` has the frame itself."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from overtone.recipes.speech.decoding.continuous_batching import FrameBatch
from overtone.recipes.speech.decoding.per_row_sampling import RowFrameSampling
from overtone.recipes.speech.decoding.ragged_kv_cache import RowCache, count_rows
from overtone.recipes.speech.decoding.token_sampling import FrameSampler

from .decoding import CsmDecoder


class CsmBatch(FrameBatch[RowCache]):
    """Speech of up to so many requests at once, with the codes that `CsmSession` generates for each alone."""

    @torch.inference_mode()
    def __init__(self, decoder: CsmDecoder, requests: int) -> None:
        super().__init__(RowCache(decoder.backbone, count_rows(requests)), requests, decoder.tokens.codebooks, decoder.tokens.positions)
        rows, device = self.cache.rows, self.codes.device
        self.decoder, self.sampling = decoder, RowFrameSampling(rows, device)
        self._depth_cache = decoder.depth.make_cache(rows, decoder.tokens.codebooks)
        self._hidden = decoder.first_head.new_zeros(rows, decoder.first_head.shape[-1])

    @property
    def ended(self) -> Tensor:
        """[rows] bool: rows whose last frame is an end frame."""
        return self.find_ends(self.codes)

    @property
    def plan(self) -> Hashable:
        """Implements `FrameBatch`."""
        return self.sampling.first.plan, self.sampling.others.plan

    def find_ends(self, codes: Tensor) -> Tensor:
        """[…, codebooks] → […] bool."""
        return (codes[..., :-1] == self.decoder.tokens.frame_end).all(-1)

    @torch.inference_mode()
    def join(self, prompt: Tensor, sampler: FrameSampler, seed: int, max_frames: int) -> int:
        """The row of a new request with a prompt [S, H]. Generates at most `max_frames` frames, the end frame included, fewer if the
        positions run out."""
        row, state = self.take_row(prompt, seed, min(max_frames, self.decoder.tokens.positions - len(prompt)))
        self.sampling.set_row(row, sampler)
        self._hidden[row] = state
        return row

    def run_frame(self, size: int) -> None:
        """One frame, and the backbone's state after it."""
        decoder, (now, _) = self.decoder, self.random
        self.codes.copy_(decoder.choose_frame(self._hidden, self._depth_cache, self.sampling.first, self.sampling.others, now))
        (window,) = self.cache.make_windows(1, size)
        self._hidden.copy_(decoder.backbone(decoder.embed_frames(self.codes)[:, None], self.cache.store, window)[:, -1])
