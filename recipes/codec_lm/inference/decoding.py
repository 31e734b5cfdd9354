"""Tokens of speech, frame by frame, with a static key/value cache.

Stock `generate` computes the scores of all 156,940 tokens at each step and calls the model through several layers of Python. Here a step
scores only the codes that can come next, and a frame is one sequence of tensor operations that never reads a value, so on CUDA it is
captured once and replayed. Where the stock output is well-formed, greedy tokens are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from overtone.finetune.errors import UserError
from overtone.recipes.speech.decoding.cached_decoder_layers import CachedDecoderLayers
from overtone.recipes.speech.decoding.frame_loop import FrameLoop
from overtone.recipes.speech.decoding.left_padding import PaddedSlots, pad_left
from overtone.recipes.speech.decoding.token_sampling import CodeSampler, draw_random_numbers

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


class SpeechTokenSession(FrameLoop):
    """Speech of one batch. A choice is the number of a token among those of its slot, so the code; in slot 0 there is one more, end of
    speech. `codes` has them in the codec's order."""

    @torch.inference_mode()
    def __init__(
        self,
        decoder: SpeechTokenDecoder,
        prompts: Sequence[Sequence[int]],
        sampler: CodeSampler,
        constrained: bool,
        seeds: Sequence[int],
        max_frames: int,
    ) -> None:
        """Read the prompts and choose the first code of each row. Generates at most `max_frames` frames, fewer if the positions run out."""
        device, slots = decoder.table.device, len(decoder.ids.slots)
        given = [torch.tensor(prompt, device=device) for prompt in prompts]
        x, pads = pad_left([F.embedding(ids, decoder.table) for ids in given])
        rows, start, _ = x.shape
        limit = min(max_frames, (decoder.positions - start) // slots)
        super().__init__(start, torch.zeros(limit, rows, slots, dtype=torch.int64, device=device), positions=slots)
        self.decoder, self.sampler, self.constrained = decoder, sampler, constrained
        self.cache = decoder.layers.make_cache(rows, start + limit * slots)
        self.padded = PaddedSlots(pads, start, decoder.layers.make_rotary_table(start + limit * slots))
        self.random = draw_random_numbers(seeds, limit + 1, slots).to(device)
        self.generated = torch.zeros(rows, len(decoder.head), dtype=torch.bool, device=device)
        for row, ids in zip(self.generated, given, strict=True):
            row[ids] = True  # as in transformers, the penalty is also for tokens of the prompt
        self.frame = torch.zeros(1, dtype=torch.int64, device=device)
        self.first = torch.zeros(rows, dtype=torch.int64, device=device)
        self.stray = torch.full((rows,), -1, device=device)
        """The first token of each row that is no code of its slot; -1: there is none."""
        hidden = decoder.layers(x, self.cache, self.padded.make_prompt_window())[:, -1]
        self.first.copy_(self._choose(hidden, 0, self.random[0, 0]))

    @property
    def ended(self) -> Tensor:
        return (self.first == self.decoder.ids.codebook_size) | (self.stray >= 0)

    def find_ends(self, codes: Tensor) -> Tensor:
        return codes[..., self.decoder.ids.slots[0]] == self.decoder.ids.codebook_size

    def check_well_formed(self) -> None:
        """Raise `UserError` if a token was no code of its slot, which only happens without the constraint."""
        found = self.stray[self.stray >= 0].tolist()
        if found:
            raise UserError(
                f"--unconstrained: the model produced token {found[0]} where a code was expected, in frame {self.frame_count}; remove the "
                "option, so that only codes are chosen, or train longer"
            )

    def run_frame(self, size: int) -> None:
        decoder, choices = self.decoder, [self.first.clone()]
        slots, random = len(decoder.ids.slots), self.random.index_select(0, self.frame)[0]
        for slot, window in enumerate(self.padded.make_step_windows(self.frame * slots, slots, size)):
            hidden = decoder.layers(F.embedding(choices[-1], decoder.tables[slot])[:, None], self.cache, window)[:, -1]
            if slot + 1 < slots:
                choices.append(self._choose(hidden, slot + 1, random[slot + 1]))
        self.codes.index_copy_(0, self.frame, torch.stack([choices[slot] for slot in decoder.slot_of_codebook], 1)[None])
        self.frame.add_(1)
        chosen = self._choose(hidden, 0, self.random.index_select(0, self.frame)[0, 0])
        self.first.copy_(torch.where(self.ended, self.first, chosen))

    def _choose(self, hidden: Tensor, slot: int, random: Tensor) -> Tensor:
        """States [B, H], random numbers [B] → the choice for a slot [B]."""
        decoder, token_ids = self.decoder, self.decoder.token_ids[slot]
        scores = F.linear(hidden, decoder.heads[slot] if self.constrained else decoder.head).float()
        penalized = self.sampler.repetition_penalty != 1.0
        if penalized:
            scores = self.sampler.penalize_repetition(scores, self.generated[:, token_ids] if self.constrained else self.generated)
        choice = self.sampler.choose(scores, random)
        if not self.constrained:
            choice = self._find_choice(choice, slot)
        if penalized:
            self.generated.scatter_(1, token_ids[choice][:, None], True)
        return choice

    def _find_choice(self, tokens: Tensor, slot: int) -> Tensor:
        """The choices that tokens [B] of the whole vocabulary are; 0, and a note in `stray`, for a token that is none."""
        matches = tokens[:, None] == self.decoder.token_ids[slot]
        is_stray = ~matches.any(1) & ~self.ended
        self.stray.copy_(torch.where(is_stray, tokens, self.stray))
        return matches.int().argmax(1)
