"""Triton kernel for cross-entropy and its gradient in the chunked loss head: reads a chunk's logits twice and overwrites them once.

With torch operations the logits are read ten times, eight of them in fp32, and each pass is limited by memory bandwidth. Import this module
only where Triton is installed; torch's CUDA builds include it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST_BLOCK = 4096
"""Vocabulary entries that a program instance processes at a time."""


@triton.jit
def _predict(
    logits: tl.tensor, stride: tl.tensor, targets: tl.tensor, losses: tl.tensor, hits: tl.tensor, words: tl.tensor, scale: tl.tensor,
    cap: tl.tensor, CAPPED: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One row: first its maximum and the sum of exponentials by an online softmax (Milakov & Gimelshein 2018, arXiv:1805.02867), then the
    gradient, which replaces the logits. Computed in fp32."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * stride
    target = tl.load(targets + row)
    chosen = tl.load(start + target).to(tl.float32) * scale
    if CAPPED:
        chosen = (2 * tl.sigmoid(2 * chosen / cap) - 1) * cap  # which is cap · tanh(chosen / cap)
    highest, total = -float("inf"), 0.0
    for first in range(0, words, BLOCK):
        place = first + tl.arange(0, BLOCK)
        shaped = tl.load(start + place, mask=place < words, other=0.0).to(tl.float32) * scale
        if CAPPED:
            shaped = (2 * tl.sigmoid(2 * shaped / cap) - 1) * cap
        shaped = tl.where(place < words, shaped, -float("inf"))
        before, highest = highest, tl.maximum(highest, tl.max(shaped, 0))
        total = total * tl.exp(before - highest) + tl.sum(tl.exp(shaped - highest), 0)
    tl.store(losses + row, tl.log(total) + highest - chosen)
    tl.store(hits + row, (chosen >= highest).to(tl.float32))
    for first in range(0, words, BLOCK):
        place = first + tl.arange(0, BLOCK)
        shaped = tl.load(start + place, mask=place < words, other=0.0).to(tl.float32) * scale
        slope = scale
        if CAPPED:
            bent = 2 * tl.sigmoid(2 * shaped / cap) - 1
            shaped, slope = bent * cap, scale * (1 - bent * bent)
        error = (tl.exp(shaped - highest) / total - tl.where(place == target, 1.0, 0.0)) * slope
        tl.store(start + place, error.to(logits.dtype.element_ty), mask=place < words)


def predict(logits: Tensor, targets: Tensor, scale: float, cap: float | None) -> tuple[Tensor, Tensor]:
    """Raw logits [n, V] and targets [n] → the summed negative log-likelihood in nats, and the number of targets with the highest logit,
    both fp32 scalars. The logits are scaled, and soft-capped as cap · tanh(z / cap) if there is a cap. They are overwritten by the gradient
    of that sum with respect to the raw logits."""
    losses, hits = (torch.empty(len(logits), device=logits.device) for _ in range(2))
    words = logits.shape[1]
    # Targets may be a column of a matrix, as codes of one codebook are; the kernel reads them one after the other.
    _predict[(len(logits),)](
        logits, logits.stride(0), targets.contiguous(), losses, hits, words, scale, 1.0 if cap is None else cap,
        CAPPED=cap is not None, BLOCK=min(LARGEST_BLOCK, triton.next_power_of_2(words)), num_warps=8,
    )  # fmt: skip
    return losses.sum(), hits.sum()
