"""Backbone and depth decoder, frame by frame, each with a static key/value cache.

The backbone's state predicts codebook 0 of the next frame, the depth decoder the others one by one from that state, and the sum of their
embeddings is the backbone's next input. A frame with the end code in all codebooks but the last, which the stock class does not compare,
is the end of speech. The stock class calls a complete `generate` for the depth decoder in every frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from overtone.recipes.speech.decoding.cached_decoder_layers import CachedDecoderLayers, KeyValueCache, make_codebook_windows
from overtone.recipes.speech.decoding.continuous_batching import FrameBatch
from overtone.recipes.speech.decoding.per_row_sampling import RowFrameSampling
from overtone.recipes.speech.decoding.ragged_kv_cache import RowCache, count_rows
from overtone.recipes.speech.decoding.token_sampling import CodeChooser, FrameSampler

from ..model.sequence_layout import CsmTokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILY = "CSM"


class CsmDecoder:
    """The parameters of a `CsmTrainingModel`, or of the stock class, arranged for decoding step by step."""

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, tokens: CsmTokens) -> None:
        self.tokens = tokens
        depth = model.depth_decoder.model
        self.backbone, self.depth = CachedDecoderLayers(model.backbone_model, FAMILY), CachedDecoderLayers(depth, FAMILY)
        self.text_table: Tensor = model.embed_text_tokens.weight
        self.depth_table: Tensor = depth.embed_tokens.weight
        embedding = model.backbone_model.embed_tokens
        self.table: Tensor = self.depth_table if embedding is None else embedding.embed_audio_tokens.weight
        self.first_head: Tensor = model.lm_head.weight
        self.other_heads: Tensor = model.depth_decoder.codebooks_head.weight
        self.project = depth.inputs_embeds_projector
        self.offsets = torch.arange(tokens.codebooks, device=self.table.device) * len(self.first_head)
        self.depth_windows = make_codebook_windows(self.depth.make_rotary_table(tokens.codebooks))

    def embed_text(self, ids: Sequence[int]) -> Tensor:
        """Ids → [S, H]."""
        return F.embedding(torch.tensor(ids, device=self.text_table.device), self.text_table)

    def embed_frames(self, codes: Tensor) -> Tensor:
        """[…, codebooks] → […, H]: the sum of each frame's embeddings."""
        return F.embedding(codes + self.offsets, self.table).sum(-2)

    def choose_frame(self, hidden: Tensor, cache: KeyValueCache, first: CodeChooser, others: CodeChooser, random: Tensor) -> Tensor:
        """Backbone's state [B, H], random numbers [codebooks, B] → the frame after it, [B, codebooks]. `first` chooses codebook 0."""
        codes = [first.choose(F.linear(hidden, self.first_head).float(), random[0])]
        x = torch.stack([hidden, F.embedding(codes[0], self.depth_table)], 1)
        for book, (window, head) in enumerate(zip(self.depth_windows, self.other_heads, strict=True), start=1):
            state = self.depth(self.project(x), cache, window)[:, -1]
            codes.append(others.choose((state @ head).float(), random[book]))
            x = F.embedding(codes[-1] + self.offsets[book], self.depth_table)[:, None]
        return torch.stack(codes, 1)


class CsmBatch(FrameBatch[RowCache, Tensor, FrameSampler]):
    """Speech of up to so many requests at once, from their prompts [S, H]. The end frame is one of a request's frames."""

    @torch.inference_mode()
    def __init__(self, decoder: CsmDecoder, requests: int) -> None:
        cache, tokens = RowCache(decoder.backbone, count_rows(requests)), decoder.tokens
        self.decoder, self.sampling = decoder, RowFrameSampling(cache.rows, decoder.table.device)
        super().__init__(cache, self.sampling, requests, tokens.codebooks, tokens.positions)
        self._depth_cache = decoder.depth.make_cache(cache.rows, tokens.codebooks)
        self._hidden = decoder.first_head.new_zeros(cache.rows, decoder.first_head.shape[-1])

    def find_ends(self, codes: Tensor) -> Tensor:
        """[…, codebooks] → […] bool."""
        return (codes[..., :-1] == self.decoder.tokens.frame_end).all(-1)

    @torch.inference_mode()
    def join(self, prompt: Tensor, sampler: FrameSampler, seed: int, limit: int) -> int:
        """Implements `FrameBatch`."""
        row, state = self.take_row(prompt, sampler, seed, limit)
        self._hidden[row] = state
        return row

    def run_frame(self, size: int) -> None:
        """One frame, and the backbone's state after it."""
        decoder, (now, _) = self.decoder, self.random
        self.codes.copy_(decoder.choose_frame(self._hidden, self._depth_cache, self.sampling.first, self.sampling.others, now))
        (window,) = self.cache.make_windows(1, size)
        self._hidden.copy_(decoder.backbone(decoder.embed_frames(self.codes)[:, None], self.cache.store, window)[:, -1])
