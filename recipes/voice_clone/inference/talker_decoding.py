"""The talker and its code predictor, frame by frame, each with a static key/value cache.

A frame is 16 codes: the talker has chosen the first, the predictor generates the others one by one, and the sum of their embeddings is the
talker's next input. The stock package calls a complete `generate` for the 15 others in every frame. Here a frame is one sequence of tensor
operations that never reads a value, so on CUDA it is captured once and replayed (`cuda_graphs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..model.model_configs import SUPPRESSED
from ..model.sequence_layout import TokenIds
from ..model.token_sampling import CodeSampler, FrameSampler, draw_random_numbers, first_permitted_frames
from .cached_decoder_layers import AttentionWindow, CachedDecoderLayers, KeyValueCache, join_weights
from .cuda_graphs import FrameGraphs
from .prompt_embeddings import PromptEmbeddings, pad_left, repeat_last


class TalkerDecoder:
    """The parameters of a `Qwen3TTSTalkerForConditionalGeneration`, arranged for decoding step by step."""

    @torch.no_grad()
    def __init__(self, talker: Any, ids: TokenIds) -> None:
        self.ids = ids
        predictor = talker.code_predictor
        self.talker, self.predictor = CachedDecoderLayers(talker.model), CachedDecoderLayers(predictor.model)
        self.first_table: Tensor = talker.model.codec_embedding.weight
        self.other_tables: Tensor = join_weights(*predictor.model.codec_embedding)
        self.first_head: Tensor = talker.codec_head.weight
        self.other_heads: list[Tensor] = [head.weight for head in predictor.lm_head]
        self.project = predictor.small_to_mtp_projection
        device = self.first_table.device
        self.offsets = torch.arange(ids.codebooks - 1, device=device) * ids.codebook_size
        self.first_permitted_frames = first_permitted_frames(len(self.first_table), SUPPRESSED, ids.codec_eos).to(device)
        self.predictor_windows = make_predictor_windows(self.predictor.make_rotary_table(ids.codebooks), ids.codebooks)

    def embed_frames(self, codes: Tensor) -> Tensor:
        """[B, codebooks] → [B, H]: the sum of each frame's embeddings."""
        others = F.embedding(codes[:, 1:] + self.offsets, self.other_tables)
        return F.embedding(codes[:, 0], self.first_table) + others.sum(1)

    def choose_other_codes(self, hidden: Tensor, first: Tensor, cache: KeyValueCache, sampler: CodeSampler, random: Tensor) -> Tensor:
        """Talker's state [B, H], codebook 0 [B], random numbers [codebooks, B] → the frame [B, codebooks]."""
        codes = [first]
        x = torch.stack([hidden, F.embedding(first, self.first_table)], 1)
        for book, (window, head) in enumerate(zip(self.predictor_windows, self.other_heads, strict=True), start=1):
            state = self.predictor(self.project(x), cache, window)[:, -1]
            codes.append(sampler.choose(F.linear(state, head).float(), random[book]))
            x = F.embedding(codes[-1] + self.offsets[book - 1], self.other_tables)[:, None]
        return torch.stack(codes, 1)


def make_predictor_windows(rotary: Tensor, codebooks: int) -> list[AttentionWindow]:
    """The predictor's 15 steps: two positions (state and codebook 0), then one per code. Each attends to all earlier positions."""
    slots = torch.arange(codebooks, device=rotary.device)
    first = torch.ones(1, 1, 2, 2, dtype=torch.bool, device=rotary.device).tril()
    starts = [0, *range(2, codebooks)]
    windows = []
    for start, end in zip(starts, [*starts[1:], codebooks], strict=True):
        cosine, sine = rotary[start:end].unbind(1)
        windows.append(AttentionWindow(slots[start:end], end, first if start == 0 else None, (cosine, sine)))
    return windows


@dataclass(frozen=True)
class DecodedCodes:
    """The codes of one row."""

    codes: Tensor
    """[T, codebooks] int64, on the CPU."""
    ended: bool
    """False: cut off before end of speech."""


class DecodingSession:
    """Speech generation for one batch. Owns the caches and all tensors that a frame reads and writes, at fixed addresses in memory."""

    @torch.inference_mode()
    def __init__(
        self, decoder: TalkerDecoder, prompts: Sequence[PromptEmbeddings], sampler: FrameSampler, seeds: Sequence[int], max_frames: int
    ) -> None:
        """Read the prompts and choose the first code of each row. Generates at most `max_frames` frames, fewer if the positions run out."""
        x, pads = pad_left([prompt.before for prompt in prompts])
        rows, self.start, _ = x.shape
        self.decoder, self.sampler, self.pads = decoder, sampler, pads
        self.max_frames = min(max_frames, decoder.ids.positions - self.start)
        slots = self.start + self.max_frames
        self.talker_cache = decoder.talker.make_cache(rows, slots)
        self.predictor_cache = decoder.predictor.make_cache(rows, decoder.ids.codebooks)
        self.rotary = decoder.talker.make_rotary_table(slots)
        self.slots = torch.arange(slots, device=x.device)
        self.is_real = self.slots >= pads[:, None]
        self.beside = repeat_last([prompt.beside for prompt in prompts])
        self.random = draw_random_numbers(seeds, self.max_frames + 1, decoder.ids.codebooks).to(x.device)
        self.generated = torch.zeros(rows, len(decoder.first_table), dtype=torch.bool, device=x.device)
        self.codes = torch.zeros(self.max_frames, rows, decoder.ids.codebooks, dtype=torch.int64, device=x.device)
        self.frame = torch.zeros(1, dtype=torch.int64, device=x.device)
        self.frame_count = 0
        self.hidden = decoder.talker(x, self.talker_cache, self._make_prompt_window())[:, -1].clone()
        self.first = torch.zeros(rows, dtype=torch.int64, device=x.device)
        self._choose_first(self.frame)
        self._graphs = FrameGraphs(slots) if x.is_cuda else None

    @property
    def ended(self) -> Tensor:
        """[B] bool: rows that have reached end of speech."""
        return self.first == self.decoder.ids.codec_eos

    def frames(self) -> Iterator[int]:
        """Generate frame after frame until all rows have ended; yields the number of frames. `results` returns the codes so far."""
        while self.frame_count < self.max_frames and not bool(self.ended.all()):
            self._advance()
            yield self.frame_count

    def chunks(self, sizes: Iterator[int]) -> Iterator[Tensor]:
        """The codes of all rows, [frames, B, codebooks] at a time, as soon as the next size of `sizes` is reached."""
        start, due = 0, next(sizes)
        for count in self.frames():
            if count - start == due:
                yield self.codes[start:count]
                start, due = count, next(sizes)
        if start < self.frame_count:
            yield self.codes[start : self.frame_count]

    def results(self) -> list[DecodedCodes]:
        """Each row up to its end of speech."""
        codes = self.codes[: self.frame_count].transpose(0, 1).cpu()
        over = (codes[:, :, 0] == self.decoder.ids.codec_eos).int()
        lengths = torch.where(over.any(1), over.argmax(1), self.frame_count) if self.frame_count else over.sum(1)
        return [DecodedCodes(row[:length], bool(ended)) for row, length, ended in zip(codes, lengths, self.ended.cpu(), strict=True)]

    @torch.inference_mode()
    def _advance(self) -> None:
        needed = self.start + self.frame_count + 1
        if self._graphs is None:
            self._run_frame(needed)
        else:
            self._graphs.run(self._run_frame, needed)
        self.frame_count += 1

    def _run_frame(self, size: int) -> None:
        """One frame, with attention to the first `size` slots of the cache. All results are written into existing tensors."""
        decoder = self.decoder
        random = self.random.index_select(0, self.frame)[0]
        codes = decoder.choose_other_codes(self.hidden, self.first, self.predictor_cache, self.sampler.others, random)
        self.codes.index_copy_(0, self.frame, codes[None])
        beside = self.beside.index_select(0, self.frame.clamp(max=len(self.beside) - 1))[0]
        x = decoder.embed_frames(codes) + beside
        self.hidden.copy_(decoder.talker(x[:, None], self.talker_cache, self._make_frame_window(size))[:, -1])
        self.frame.add_(1)
        self._choose_first(self.frame)

    def _choose_first(self, count: Tensor) -> None:
        """Codebook 0 of frame `count` [1], or end of speech; a row that has ended stays ended."""
        scores = F.linear(self.hidden, self.decoder.first_head).float()
        scores = torch.where(
            self.decoder.first_permitted_frames > count, -torch.inf, self.sampler.first.penalize_repetition(scores, self.generated)
        )
        chosen = self.sampler.first.choose(scores, self.random.index_select(0, count)[0, 0])
        self.first.copy_(torch.where(self.ended, self.first, chosen))
        if self.sampler.first.repetition_penalty != 1.0:
            self.generated.scatter_(1, self.first[:, None], True)

    def _make_prompt_window(self) -> AttentionWindow:
        slots = self.slots[: self.start]
        before = slots <= slots[:, None]
        # Each padding position attends to itself: with nothing to attend to, it and everything computed from it would be NaN.
        mask = (before & self.is_real[:, None, : self.start]) | torch.eye(self.start, dtype=torch.bool, device=slots.device)
        return AttentionWindow(slots, self.start, mask[:, None], self._rotary_at((slots - self.pads[:, None]).clamp(min=0)))

    def _make_frame_window(self, size: int) -> AttentionWindow:
        slot = self.frame + self.start
        mask = self.is_real[:, None, None, :size] & (self.slots[:size] <= slot)
        return AttentionWindow(slot, size, mask, self._rotary_at((slot - self.pads)[:, None]))

    def _rotary_at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[B, S] → cosine and sine [B, 1, S, head]."""
        cosine, sine = F.embedding(positions, self.rotary.flatten(1)).unsqueeze(1).chunk(2, -1)
        return cosine, sine
