"""A batch of prompts of different lengths in one static cache: shorter ones have padding before them, which is never attended to."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from .cached_decoder_layers import AttentionWindow


def pad_left(prompts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """[S, H] each → ([B, longest, H], zeros before the shorter ones; number of zeros [B])."""
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=prompts[0].device)
    return pad_sequence(prompts, batch_first=True, padding_side="left"), lengths.max() - lengths


class PaddedSlots:
    """The cache slots of a batch. Row b uses the slots from `pads[b]` on, and its positions count from there."""

    def __init__(self, pads: Tensor, prompt: int, rotary: Tensor) -> None:
        """Padding `pads` [B] before prompts, which end at slot `prompt`; `rotary` [slots, 2, head] for all slots of the cache
        (`CachedDecoderLayers.make_rotary_table`)."""
        self.prompt, self._pads, self._rotary = prompt, pads, rotary
        self._slots = torch.arange(len(rotary), device=pads.device)
        self._is_real = self._slots >= pads[:, None]

    def make_prompt_window(self) -> AttentionWindow:
        """Return the window in which all positions of the prompts are processed at once."""
        slots = self._slots[: self.prompt]
        before = slots <= slots[:, None]
        # Each padding position attends to itself: with nothing to attend to, it and everything computed from it would be NaN.
        mask = (before & self._is_real[:, None, : self.prompt]) | torch.eye(self.prompt, dtype=torch.bool, device=slots.device)
        return AttentionWindow(slots, self.prompt, mask[:, None], self._rotary_at((slots - self._pads[:, None]).clamp(min=0)))

    def make_step_window(self, step: Tensor, size: int) -> AttentionWindow:
        """Return the window of the position `step` [1] after the prompts, with attention to the first `size` slots."""
        return self.make_step_windows(step, 1, size)[0]

    def make_step_windows(self, first: Tensor, count: int, size: int) -> list[AttentionWindow]:
        """Return the windows of `count` positions after the prompts, one by one from `first` [1] on, with attention to the first `size`
        slots. Making them together takes as many calls as making one."""
        slots = first + self._slots[:count] + self.prompt
        mask = self._is_real[:, None, None, :size] & (self._slots[:size] <= slots[:, None])
        cosine, sine = self._rotary_at(slots - self._pads[:, None])
        steps = zip(slots.split(1), mask.split(1, 2), cosine.split(1, 2), sine.split(1, 2), strict=True)
        return [AttentionWindow(slot, size, of_step, (cos, sin)) for slot, of_step, cos, sin in steps]

    def _rotary_at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[B, S] → cosine and sine [B, 1, S, head]."""
        cosine, sine = F.embedding(positions, self._rotary.flatten(1)).unsqueeze(1).chunk(2, -1)
        return cosine, sine
