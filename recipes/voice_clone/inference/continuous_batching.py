"""The talker and its code predictor for requests that join and leave between frames; `decoding` has the frame itself."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor
from torch.nn import functional as F

from overtone.recipes.speech.decoding.continuous_batching import FrameBatch
from overtone.recipes.speech.decoding.per_row_sampling import RowFrameSampling
from overtone.recipes.speech.decoding.ragged_kv_cache import RowCache, count_rows
from overtone.recipes.speech.decoding.token_sampling import FrameSampler

from .decoding import TalkerDecoder
from .prompt_embeddings import PromptEmbeddings


class TalkerBatch(FrameBatch[RowCache]):
    """Speech of up to so many requests at once, with the codes that `DecodingSession` generates for each alone."""

    @torch.inference_mode()
    def __init__(self, decoder: TalkerDecoder, requests: int) -> None:
        super().__init__(RowCache(decoder.talker, count_rows(requests)), requests, decoder.ids.codebooks, decoder.ids.positions)
        rows, device = self.cache.rows, self.codes.device
        self.decoder, self.sampling = decoder, RowFrameSampling(rows, device)
        self._predictor_cache = decoder.predictor.make_cache(rows, decoder.ids.codebooks)
        self.first = torch.zeros(rows, dtype=torch.int64, device=device)
        """[rows]: codebook 0 of the next frame, or end of speech."""
        self._hidden = decoder.first_table.new_zeros(rows, decoder.first_head.shape[-1])
        self._beside = torch.zeros_like(self._hidden)
        """[rows, H]: the text that is added to this frame."""
        self._texts: dict[int, Tensor] = {}
        """Row → text [L, H] beside its frames, if it is more than one vector."""
        self._generated = torch.zeros(rows, len(decoder.first_table), dtype=torch.bool, device=device)

    @property
    def ended(self) -> Tensor:
        """[rows] bool: rows whose next codebook 0 is end of speech."""
        return self.first == self.decoder.ids.codec_eos

    @property
    def plan(self) -> Hashable:
        """Implements `FrameBatch`."""
        return self.sampling.first.plan, self.sampling.others.plan

    def find_ends(self, codes: Tensor) -> Tensor:
        """[…, codebooks] → […] bool: codebook 0 is end of speech."""
        return codes[..., 0] == self.decoder.ids.codec_eos

    @torch.inference_mode()
    def join(self, prompt: PromptEmbeddings, sampler: FrameSampler, seed: int, max_frames: int) -> int:
        """The row of a new request. Generates at most `max_frames` frames, fewer if the positions run out."""
        limit = min(max_frames, self.decoder.ids.positions - len(prompt.before))
        row, state = self.take_row(prompt.before, seed, limit)
        self.sampling.set_row(row, sampler)
        self._hidden[row] = state
        self._beside[row] = prompt.beside[0]
        self._texts.pop(row, None)
        if len(prompt.beside) > 1:
            self._texts[row] = prompt.beside
        self._generated[row] = False
        self.first[row] = self._choose_first(self.frame)[row]
        self._generated[row, self.first[row]] = True
        return row

    def prepare_frame(self) -> None:
        """The text beside the next frame of rows whose text is streamed."""
        frames = self.frame.tolist() if self._texts else []
        for row, text in self._texts.items():
            self._beside[row] = text[min(frames[row], len(text) - 1)]

    def run_frame(self, size: int) -> None:
        """One frame from the codes that were chosen before it, and codebook 0 of the next one."""
        decoder, (now, _) = self.decoder, self.random
        self.codes.copy_(decoder.choose_other_codes(self._hidden, self.first, self._predictor_cache, self.sampling.others, now))
        x = decoder.embed_frames(self.codes) + self._beside
        (window,) = self.cache.make_windows(1, size)
        self._hidden.copy_(decoder.talker(x[:, None], self.cache.store, window)[:, -1])
        self.first.copy_(self._choose_first(self.frame + 1))
        if self.sampling.first.penalizes:
            self._generated.scatter_(1, self.first[:, None], True)

    def _choose_first(self, count: Tensor) -> Tensor:
        """Codebook 0 of frame `count` [rows] of each row, or end of speech."""
        scores = F.linear(self._hidden, self.decoder.first_head).float()
        scores = self.sampling.first.penalize_repetition(scores, self._generated)
        scores = torch.where(self.decoder.first_permitted_frames > count[:, None], -torch.inf, scores)
        return self.sampling.first.choose(scores, self.random[1, 0])
