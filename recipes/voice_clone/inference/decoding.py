"""The talker and its code predictor, frame by frame, each with a static key/value cache.

A frame is 16 codes: the talker has chosen the first, the predictor generates the others one by one, and the sum of their embeddings is the
talker's next input. The stock package calls a complete `generate` for the 15 others in every frame. Here a frame is one sequence of tensor
operations (`overtone.recipes.speech.decoding.frame_loop`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from overtone.recipes.speech.decoding.cached_decoder_layers import CachedDecoderLayers, KeyValueCache, join_weights, make_codebook_windows
from overtone.recipes.speech.decoding.frame_loop import FrameLoop
from overtone.recipes.speech.decoding.left_padding import PaddedSlots, pad_left
from overtone.recipes.speech.decoding.token_sampling import CodeChooser, FrameSampler, draw_random_numbers

from ..model.config_factory import SUPPRESSED
from ..model.sequence_layout import TokenIds
from .prompt_embeddings import PromptEmbeddings, repeat_last

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


class DecodingSession(FrameLoop):
    """Speech generation for one batch. Owns the caches and all tensors that a frame reads and writes."""

    @torch.inference_mode()
    def __init__(
        self, decoder: TalkerDecoder, prompts: Sequence[PromptEmbeddings], sampler: FrameSampler, seeds: Sequence[int], max_frames: int
    ) -> None:
        """Read the prompts and choose the first code of each row. Generates at most `max_frames` frames, fewer if the positions run out."""
        x, pads = pad_left([prompt.before for prompt in prompts])
        rows, start, _ = x.shape
        self.decoder, self.sampler = decoder, sampler
        most = min(max_frames, decoder.ids.positions - start)
        super().__init__(start, torch.zeros(most, rows, decoder.ids.codebooks, dtype=torch.int64, device=x.device))
        self.talker_cache = decoder.talker.make_cache(rows, start + most)
        self.predictor_cache = decoder.predictor.make_cache(rows, decoder.ids.codebooks)
        self.slots = PaddedSlots(pads, start, decoder.talker.make_rotary_table(start + most))
        self.beside = repeat_last([prompt.beside for prompt in prompts])
        self.random = draw_random_numbers(seeds, most + 1, decoder.ids.codebooks).to(x.device)
        self.generated = torch.zeros(rows, len(decoder.first_table), dtype=torch.bool, device=x.device)
        self.frame = torch.zeros(1, dtype=torch.int64, device=x.device)
        self.hidden = decoder.talker(x, self.talker_cache, self.slots.make_prompt_window())[:, -1].clone()
        self.first = torch.zeros(rows, dtype=torch.int64, device=x.device)
        self.choose_first(self.frame)

    @property
    def ended(self) -> Tensor:
        """[B] bool: rows whose next codebook 0 is end of speech."""
        return self.first == self.decoder.ids.codec_eos

    def find_ends(self, codes: Tensor) -> Tensor:
        """[…, codebooks] → […] bool: codebook 0 is end of speech."""
        return codes[..., 0] == self.decoder.ids.codec_eos

    def run_frame(self, size: int) -> None:
        """One frame from the code that was chosen before it, and codebook 0 of the next one."""
        decoder = self.decoder
        random = self.random.index_select(0, self.frame)[0]
        codes = decoder.choose_other_codes(self.hidden, self.first, self.predictor_cache, self.sampler.others, random)
        self.codes.index_copy_(0, self.frame, codes[None])
        beside = self.beside.index_select(0, self.frame.clamp(max=len(self.beside) - 1))[0]
        x = decoder.embed_frames(codes) + beside
        self.hidden.copy_(decoder.talker(x[:, None], self.talker_cache, self.slots.make_step_window(self.frame, size))[:, -1])
        self.frame.add_(1)
        self.choose_first(self.frame)

    def choose_first(self, count: Tensor) -> None:
        """Codebook 0 of frame `count` [1], or end of speech; a row that has ended stays ended."""
        scores = F.linear(self.hidden, self.decoder.first_head).float()
        scores = torch.where(
            self.decoder.first_permitted_frames > count, -torch.inf, self.sampler.first.penalize_repetition(scores, self.generated)
        )
        chosen = self.sampler.first.choose(scores, self.random.index_select(0, count)[0, 0])
        self.first.copy_(torch.where(self.ended, self.first, chosen))
        if self.sampler.first.repetition_penalty != 1.0:
            self.generated.scatter_(1, self.first[:, None], True)
