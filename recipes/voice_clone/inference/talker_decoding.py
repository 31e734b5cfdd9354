"""The talker and its code predictor, frame by frame, over one static key/value cache each.

A frame is 16 codes: the talker has chosen the first, the predictor says the others one after the other, and their embeddings are the
talker's next position. The stock package calls a whole `generate` for the 15 others inside of every frame; here a frame is one run of
tensor operations without a look at their values, which on CUDA is captured once and replayed (`cuda_graphs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..model.model_configs import SUPPRESSED
from ..model.sequence_layout import Ids
from ..model.token_sampling import Choice, Choices, draws, permitted_from
from .cached_decoder_layers import Cache, Stack, Window, joined
from .cuda_graphs import FrameGraphs
from .prompt_embeddings import Prompt, held, left_padded


class Decoder:
    """The parameters of a `Qwen3TTSTalkerForConditionalGeneration`, ready to be stepped through."""

    @torch.no_grad()
    def __init__(self, talker: Any, ids: Ids) -> None:
        self.ids = ids
        predictor = talker.code_predictor
        self.talker, self.predictor = Stack(talker.model), Stack(predictor.model)
        self.first_table: Tensor = talker.model.codec_embedding.weight
        self.other_tables: Tensor = joined(*predictor.model.codec_embedding)
        self.first_head: Tensor = talker.codec_head.weight
        self.other_heads: list[Tensor] = [head.weight for head in predictor.lm_head]
        self.narrowed = predictor.small_to_mtp_projection
        device = self.first_table.device
        self.offsets = torch.arange(ids.codebooks - 1, device=device) * ids.codebook_size
        self.permitted_from = permitted_from(len(self.first_table), SUPPRESSED, ids.codec_eos).to(device)
        self.predictor_windows = predictor_windows(self.predictor.rotary_table(ids.codebooks), ids.codebooks)

    def embedded(self, codes: Tensor) -> Tensor:
        """[B, codebooks] → [B, H]: the sum of a frame's embeddings."""
        others = F.embedding(codes[:, 1:] + self.offsets, self.other_tables)
        return F.embedding(codes[:, 0], self.first_table) + others.sum(1)

    def other_codes(self, hidden: Tensor, first: Tensor, cache: Cache, choice: Choice, drawn: Tensor) -> Tensor:
        """(talker's state [B, H], codebook 0 [B], drawn [codebooks, B]) → the frame [B, codebooks]."""
        codes = [first]
        x = torch.stack([hidden, F.embedding(first, self.first_table)], 1)
        for book, (window, head) in enumerate(zip(self.predictor_windows, self.other_heads, strict=True), start=1):
            state = self.predictor(self.narrowed(x), cache, window)[:, -1]
            codes.append(choice.pick(F.linear(state, head).float(), drawn[book]))
            x = F.embedding(codes[-1] + self.offsets[book - 1], self.other_tables)[:, None]
        return torch.stack(codes, 1)


def predictor_windows(rotary: Tensor, codebooks: int) -> list[Window]:
    """The predictor's 15 steps: two positions (state and codebook 0), then one for each code; they look at all that went before."""
    slots = torch.arange(codebooks, device=rotary.device)
    first = torch.ones(1, 1, 2, 2, dtype=torch.bool, device=rotary.device).tril()
    starts = [0, *range(2, codebooks)]
    windows = []
    for start, end in zip(starts, [*starts[1:], codebooks], strict=True):
        cosine, sine = rotary[start:end].unbind(1)
        windows.append(Window(slots[start:end], end, first if start == 0 else None, (cosine, sine)))
    return windows


@dataclass(frozen=True)
class Said:
    """One row's codes."""

    codes: Tensor
    """[T, codebooks] int64, on the CPU."""
    ended: bool
    """False: cut off."""


class Speech:
    """A batch that is being spoken. Owns the caches and everything that a frame reads and writes, at fixed places in memory."""

    @torch.inference_mode()
    def __init__(self, decoder: Decoder, prompts: Sequence[Prompt], choices: Choices, seeds: Sequence[int], most: int) -> None:
        """Reads the prompts and chooses the first code of each row. At most `most` frames are spoken, fewer if the positions end."""
        x, pads = left_padded([prompt.before for prompt in prompts])
        rows, self.start, _ = x.shape
        self.decoder, self.choices, self.pads = decoder, choices, pads
        self.most = min(most, decoder.ids.positions - self.start)
        slots = self.start + self.most
        self.talker_cache = decoder.talker.cache(rows, slots)
        self.predictor_cache = decoder.predictor.cache(rows, decoder.ids.codebooks)
        self.rotary = decoder.talker.rotary_table(slots)
        self.slots = torch.arange(slots, device=x.device)
        self.real = self.slots >= pads[:, None]
        self.beside = held([prompt.beside for prompt in prompts])
        self.draws = draws(seeds, self.most + 1, decoder.ids.codebooks).to(x.device)
        self.said = torch.zeros(rows, len(decoder.first_table), dtype=torch.bool, device=x.device)
        self.codes = torch.zeros(self.most, rows, decoder.ids.codebooks, dtype=torch.int64, device=x.device)
        self.frame = torch.zeros(1, dtype=torch.int64, device=x.device)
        self.spoken = 0
        self.hidden = decoder.talker(x, self.talker_cache, self._prompt_window())[:, -1].clone()
        self.first = torch.zeros(rows, dtype=torch.int64, device=x.device)
        self._choose_first(self.frame)
        self._graphs = FrameGraphs(slots) if x.is_cuda else None

    @property
    def ended(self) -> Tensor:
        """[B] bool: rows that have come to their end."""
        return self.first == self.decoder.ids.codec_eos

    def frames(self) -> Iterator[int]:
        """Speak frame after frame until all rows have ended; yields how many there are. `result` tells what was said so far."""
        while self.spoken < self.most and not bool(self.ended.all()):
            self._advance()
            yield self.spoken

    def pieces(self, sizes: Iterator[int]) -> Iterator[Tensor]:
        """What all rows say, [frames, B, codebooks] at a time, as soon as there are as many frames as the next size says."""
        start, due = 0, next(sizes)
        for spoken in self.frames():
            if spoken - start == due:
                yield self.codes[start:spoken]
                start, due = spoken, next(sizes)
        if start < self.spoken:
            yield self.codes[start : self.spoken]

    def result(self) -> list[Said]:
        """Every row up to its end."""
        codes = self.codes[: self.spoken].transpose(0, 1).cpu()
        over = (codes[:, :, 0] == self.decoder.ids.codec_eos).int()
        lengths = torch.where(over.any(1), over.argmax(1), self.spoken) if self.spoken else over.sum(1)
        return [Said(row[:length], bool(ended)) for row, length, ended in zip(codes, lengths, self.ended.cpu(), strict=True)]

    @torch.inference_mode()
    def _advance(self) -> None:
        needed = self.start + self.spoken + 1
        if self._graphs is None:
            self._frame(needed)
        else:
            self._graphs.run(self._frame, needed)
        self.spoken += 1

    def _frame(self, size: int) -> None:
        """One frame, looking at the cache's first `size` slots. All that changes is in tensors that stay where they are."""
        decoder = self.decoder
        drawn = self.draws.index_select(0, self.frame)[0]
        codes = decoder.other_codes(self.hidden, self.first, self.predictor_cache, self.choices.others, drawn)
        self.codes.index_copy_(0, self.frame, codes[None])
        beside = self.beside.index_select(0, self.frame.clamp(max=len(self.beside) - 1))[0]
        x = decoder.embedded(codes) + beside
        self.hidden.copy_(decoder.talker(x[:, None], self.talker_cache, self._frame_window(size))[:, -1])
        self.frame.add_(1)
        self._choose_first(self.frame)

    def _choose_first(self, count: Tensor) -> None:
        """Codebook 0 of frame `count` [1], or the end; a row that has ended stays ended."""
        scores = F.linear(self.hidden, self.decoder.first_head).float()
        scores = torch.where(self.decoder.permitted_from > count, -torch.inf, self.choices.first.penalised(scores, self.said))
        chosen = self.choices.first.pick(scores, self.draws.index_select(0, count)[0, 0])
        self.first.copy_(torch.where(self.ended, self.first, chosen))
        if self.choices.first.repetition_penalty != 1.0:
            self.said.scatter_(1, self.first[:, None], True)

    def _prompt_window(self) -> Window:
        slots = self.slots[: self.start]
        before = slots <= slots[:, None]
        # A position of padding looks at itself: with nothing to look at it would be NaN, and so would all that is multiplied with it.
        mask = (before & self.real[:, None, : self.start]) | torch.eye(self.start, dtype=torch.bool, device=slots.device)
        return Window(slots, self.start, mask[:, None], self._rotary_at((slots - self.pads[:, None]).clamp(min=0)))

    def _frame_window(self, size: int) -> Window:
        slot = self.frame + self.start
        mask = self.real[:, None, None, :size] & (self.slots[:size] <= slot)
        return Window(slot, size, mask, self._rotary_at((slot - self.pads)[:, None]))

    def _rotary_at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[B, S] → cosine and sine [B, 1, S, head]."""
        cosine, sine = F.embedding(positions, self.rotary.flatten(1)).unsqueeze(1).chunk(2, -1)
        return cosine, sine
