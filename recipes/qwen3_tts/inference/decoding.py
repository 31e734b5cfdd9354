"""The talker and its code predictor, frame by frame, each with a static key/value cache.

A frame is 16 codes: the talker has chosen the first, the predictor generates the others one by one, and the sum of their embeddings is the
talker's next input. The stock package calls a complete `generate` for the 15 others in every frame. Here a frame is one sequence of tensor
operations (`overtone.recipes.speech.decoding.continuous_batching`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from overtone.recipes.speech.decoding.cached_decoder_layers import CachedDecoderLayers, KeyValueCache, join_weights, make_codebook_windows
from overtone.recipes.speech.decoding.continuous_batching import FrameBatch
from overtone.recipes.speech.decoding.per_row_sampling import RowFrameSampling
from overtone.recipes.speech.decoding.ragged_kv_cache import RowCache, count_rows
from overtone.recipes.speech.decoding.token_sampling import CodeChooser, FrameSampler

from ..model.config_factory import SUPPRESSED
from ..model.sequence_layout import TokenIds
from .prompt_embeddings import PromptEmbeddings

if TYPE_CHECKING:
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSTalkerForConditionalGeneration

FAMILY = "Qwen3-TTS"
MIN_NEW = 2
"""Codebook 0 has at least this many codes before end of speech (`min_new_tokens` in the stock generation)."""


class TalkerDecoder:
    """The parameters of a `Qwen3TTSTalkerForConditionalGeneration`, arranged for decoding step by step."""

    @torch.no_grad()
    def __init__(self, talker: Qwen3TTSTalkerForConditionalGeneration, ids: TokenIds) -> None:
        self.ids = ids
        predictor = talker.code_predictor
        self.talker, self.predictor = CachedDecoderLayers(talker.model, FAMILY), CachedDecoderLayers(predictor.model, FAMILY)
        self.first_table: Tensor = talker.model.codec_embedding.weight
        self.other_tables: Tensor = join_weights(*predictor.model.codec_embedding)
        self.first_head: Tensor = talker.codec_head.weight
        self.other_heads: list[Tensor] = [head.weight for head in predictor.lm_head]
        self.project = predictor.small_to_mtp_projection
        device = self.first_table.device
        self.offsets = torch.arange(ids.codebooks - 1, device=device) * ids.codebook_size
        self.first_permitted_frames = first_permitted_frames(len(self.first_table), SUPPRESSED, ids.codec_eos).to(device)
        self.predictor_windows = make_codebook_windows(self.predictor.make_rotary_table(ids.codebooks))

    def embed_frames(self, codes: Tensor) -> Tensor:
        """[B, codebooks] → [B, H]: the sum of each frame's embeddings."""
        others = F.embedding(codes[:, 1:] + self.offsets, self.other_tables)
        return F.embedding(codes[:, 0], self.first_table) + others.sum(1)

    def choose_other_codes(self, hidden: Tensor, first: Tensor, cache: KeyValueCache, sampler: CodeChooser, random: Tensor) -> Tensor:
        """Talker's state [B, H], codebook 0 [B], random numbers [codebooks, B] → the frame [B, codebooks]."""
        codes = [first]
        x = torch.stack([hidden, F.embedding(first, self.first_table)], 1)
        for book, (window, head) in enumerate(zip(self.predictor_windows, self.other_heads, strict=True), start=1):
            state = self.predictor(self.project(x), cache, window)[:, -1]
            codes.append(sampler.choose(F.linear(state, head).float(), random[book]))
            x = F.embedding(codes[-1] + self.offsets[book - 1], self.other_tables)[:, None]
        return torch.stack(codes, 1)


def first_permitted_frames(vocabulary: int, suppressed: int, end: int) -> Tensor:
    """[vocabulary] int64: the first frame in which each code is permitted. The last `suppressed` codes except `end` never are."""
    first = torch.zeros(vocabulary, dtype=torch.int64)
    first[vocabulary - suppressed :] = torch.iinfo(torch.int64).max
    first[end] = MIN_NEW
    return first


class TalkerBatch(FrameBatch[RowCache, PromptEmbeddings, FrameSampler]):
    """Speech of up to so many requests at once."""

    @torch.inference_mode()
    def __init__(self, decoder: TalkerDecoder, requests: int) -> None:
        cache, ids, device = RowCache(decoder.talker, count_rows(requests)), decoder.ids, decoder.first_table.device
        self.decoder, self.sampling = decoder, RowFrameSampling(cache.rows, device)
        super().__init__(cache, self.sampling, requests, ids.codebooks, ids.positions)
        self.others: CodeChooser = self.sampling.others
        """Chooses codebooks 1 to 15."""
        self._predictor_cache = decoder.predictor.make_cache(cache.rows, ids.codebooks)
        self.first = torch.zeros(cache.rows, dtype=torch.int64, device=device)
        """[rows]: codebook 0 of the next frame, or end of speech."""
        self._hidden = decoder.first_table.new_zeros(cache.rows, decoder.first_head.shape[-1])
        self._beside = torch.zeros_like(self._hidden)
        """[rows, H]: the text that is added to this frame."""
        self._texts: dict[int, Tensor] = {}
        """Row → text [L, H] beside its frames, if it is more than one vector."""
        self._generated = torch.zeros(cache.rows, len(decoder.first_table), dtype=torch.bool, device=device)

    @property
    def ended(self) -> Tensor:
        """[rows] bool: rows whose next codebook 0 is end of speech."""
        return self.first == self.decoder.ids.codec_eos

    def find_ends(self, codes: Tensor) -> Tensor:
        """[…, codebooks] → […] bool: codebook 0 is end of speech."""
        return codes[..., 0] == self.decoder.ids.codec_eos

    @torch.inference_mode()
    def join(self, prompt: PromptEmbeddings, sampler: FrameSampler, seed: int, limit: int) -> int:
        """Implements `FrameBatch`."""
        row, state = self.take_row(prompt.before, sampler, seed, limit)
        self._hidden[row] = state
        self._beside[row] = prompt.beside[0]
        self._texts.pop(row, None)
        if len(prompt.beside) > 1:
            self._texts[row] = prompt.beside
        self._generated[row] = False
        self.first[row] = self.choose_first(self.frame)[row]
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
        self.codes.copy_(decoder.choose_other_codes(self._hidden, self.first, self._predictor_cache, self.others, now))
        x = decoder.embed_frames(self.codes) + self._beside
        (window,) = self.cache.make_windows(1, size)
        self._hidden.copy_(decoder.talker(x[:, None], self.cache.store, window)[:, -1])
        self.first.copy_(self.choose_first(self.frame + 1))
        if self.sampling.first.penalizes:
            self._generated.scatter_(1, self.first[:, None], True)

    def choose_first(self, count: Tensor) -> Tensor:
        """Codebook 0 of frame `count` [rows] of each row, or end of speech."""
        scores = F.linear(self._hidden, self.decoder.first_head).float()
        scores = self.sampling.first.penalize_repetition(scores, self._generated)
        scores = torch.where(self.decoder.first_permitted_frames > count[:, None], -torch.inf, scores)
        return self.sampling.first.choose(scores, self.random[1, 0])
