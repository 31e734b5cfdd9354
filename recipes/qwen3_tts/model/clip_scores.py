"""Batches of clips whose log-probabilities come clip by clip, for losses that compare whole clips.

The tokens of a clip are its codebook 0 of each frame and its end of speech, then codebooks 1 to 15 frame by frame: 16·T, and one more
unless the speech was cut off.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from overtone.finetune.recipe import Batch, Sample

from .modeling import SCORES
from .sequence_layout import IGNORE, collate


def collate_clips(clips: list[Sample]) -> tuple[Batch, list[int]]:
    """Return the batch of `sequence_layout.collate`, with the `order` [M + 15·N] by which `score_codes` sorts, and the number of tokens of
    each clip."""
    batch = collate(clips)
    firsts = [int((clip["labels"] != IGNORE).sum()) for clip in clips]
    others = [int(clip["frame_mask"].sum()) * (clip["codes"].shape[-1] - 1) for clip in clips]
    of_first, of_others = torch.arange(sum(firsts)).split(firsts), (torch.arange(sum(others)) + sum(firsts)).split(others)
    order = torch.cat([part for pair in zip(of_first, of_others, strict=True) for part in pair])
    return replace(batch, tensors={**batch.tensors, "order": order}), [sum(pair) for pair in zip(firsts, others, strict=True)]


def score_codes(model: nn.Module, batch: Batch) -> Tensor:
    """One forward → the log-probability of each token of the clips [M + 15·N] in nats, clip by clip."""
    scores: Tensor = model(batch.tensors, result="scores")[SCORES]
    return scores[batch.tensors["order"]]
