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
from overtone.recipes.speech.decoding.frame_loop import FrameLoop
from overtone.recipes.speech.decoding.left_padding import PaddedSlots, pad_left
from overtone.recipes.speech.decoding.token_sampling import CodeChooser, FrameSampler, draw_random_numbers

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


class CsmSession(FrameLoop):
    """Speech generation for one batch. Owns the caches and all tensors that a frame reads and writes."""

    @torch.inference_mode()
    def __init__(
        self, decoder: CsmDecoder, prompts: Sequence[Tensor], sampler: FrameSampler, seeds: Sequence[int], max_frames: int
    ) -> None:
        """Read the prompts, [S, H] each. Generates at most `max_frames` frames, the end frame included, fewer if the positions run out."""
        x, pads = pad_left(list(prompts))
        rows, start, _ = x.shape
        books, most = decoder.tokens.codebooks, min(max_frames, decoder.tokens.positions - start)
        super().__init__(start, torch.zeros(most, rows, books, dtype=torch.int64, device=x.device))
        self.decoder, self.sampler = decoder, sampler
        self.cache, self.depth_cache = decoder.backbone.make_cache(rows, start + most), decoder.depth.make_cache(rows, books)
        self.slots = PaddedSlots(pads, start, decoder.backbone.make_rotary_table(start + most))
        self.random = draw_random_numbers(seeds, most, books).to(x.device)
        self.frame = torch.zeros(1, dtype=torch.int64, device=x.device)
        self.hidden = decoder.backbone(x, self.cache, self.slots.make_prompt_window())[:, -1].clone()
        self.has_ended = torch.zeros(rows, dtype=torch.bool, device=x.device)

    @property
    def ended(self) -> Tensor:
        """[B] bool: rows with an end frame."""
        return self.has_ended

    def find_ends(self, codes: Tensor) -> Tensor:
        """[…, codebooks] → […] bool."""
        return (codes[..., :-1] == self.decoder.tokens.frame_end).all(-1)

    def run_frame(self, size: int) -> None:
        """One frame, and the backbone's state after it."""
        random = self.random.index_select(0, self.frame)[0]
        codes = self.decoder.choose_frame(self.hidden, self.depth_cache, self.sampler.first, self.sampler.others, random)
        self.codes.index_copy_(0, self.frame, codes[None])
        self.has_ended.logical_or_(self.find_ends(codes))
        x = self.decoder.embed_frames(codes)[:, None]
        self.hidden.copy_(self.decoder.backbone(x, self.cache, self.slots.make_step_window(self.frame, size))[:, -1])
        self.frame.add_(1)
