"""The output head and its cross-entropy in one, chunk by chunk of positions, so that full logits that are large never exist.

Full logits are the largest tensors of a small model's step: 16,384 positions over Qwen3's 151,936 words are 10 GB in fp32, and again for
their gradient. Here a chunk's logits turn into its part of the loss and of all gradients at once, and are gone. The gradients come in the
forward pass, since that of a sum is known up to the one factor that the backward pass brings; so no matrix product is done twice. Weights
and states come in one type, as sharding casts them: autocast knows nothing of the products in here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

PARTS = 64
"""Into how many chunks the positions are cut, at most."""
SMALLEST = {"cpu": 256, "cuda": 2048}
"""Rows of a chunk, at least: with fewer, a matrix product mostly waits for the weight. A GPU reads the weight twice for each chunk and its
gradient once more, in fp32, and writes that: 3.7 GB of Qwen3-1.7B's, while 2,048 rows are 1.9 · 10¹² multiplications and additions."""
AT_ONCE = {"cpu": 2**19, "cuda": 2**22}
"""Logits of a chunk, at least, so that few are not cut at all: 2 MB, which a CPU keeps in its cache, or 16 MB, fewer than which a GPU
computes faster than its kernels are started."""


@dataclass(frozen=True)
class Shaping:
    """What a model does to its logits after the head: scale · z, then cap · tanh(z / cap)."""

    scale: float = 1.0
    cap: float | None = None
    """None: no cap."""


class LossHead(nn.Module):
    """A linear output head [V, H] that is asked how well it predicts, not what."""

    def __init__(self, linear: nn.Linear, shaping: Shaping = Shaping()) -> None:
        """Takes the parameters of `linear` over, under the same names."""
        super().__init__()
        self.weight, self.bias, self.shaping = linear.weight, linear.bias, shaping

    def forward(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [N, H], and the words [N] that follow them → fp32 scalars: the summed negative log-likelihood of those words in
        nats, and how many of them had the highest logit."""
        nll, hits = _Chunked.apply(hidden, self.weight, self.bias, targets, self.shaping, torch.is_grad_enabled())
        return nll, hits


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, shaping: Shaping, learning: bool
    ) -> tuple[Tensor, Tensor]:
        of_hidden, of_weight, of_bias = _room(ctx.needs_input_grad if learning else (False,) * 3, hidden, weight, bias)
        nll, hits = torch.zeros((), device=hidden.device), torch.zeros((), device=hidden.device)
        rows = rows_of_a_chunk(len(hidden), len(weight), hidden.device.type)
        predict = _predict_by_kernel if hidden.is_cuda and kernel_works(hidden.device) else _predict
        for part in (slice(start, start + rows) for start in range(0, len(hidden), rows)):
            error, its_nll, its_hits = predict(hidden[part], weight, bias, targets[part], shaping)
            nll += its_nll
            hits += its_hits
            if of_hidden is not None:
                torch.mm(error, weight, out=of_hidden[part])
            if of_weight is not None:
                _add_product(of_weight, error.T, hidden[part])
            if of_bias is not None:
                of_bias += error.sum(0)
            del error  # or it would be there still beside the next one's logits
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (hidden, weight, bias)]
        ctx.save_for_backward(of_hidden, of_weight, of_bias)
        ctx.mark_non_differentiable(hits)
        return nll, hits

    @staticmethod
    def backward(ctx: Any, factor: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        # In place: a second copy of the weight's gradient would be as large as the head. A second backward raises.
        scaled = [
            None if gradient is None else gradient.mul_(factor).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return (*scaled, None, None, None)


def of_logits(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """What `LossHead` says, of logits [N, V] that are there."""
    nll = functional.cross_entropy(logits.float(), targets, reduction="sum")
    return nll, (logits.detach().argmax(-1) == targets).sum().float()


def rows_of_a_chunk(positions: int, words: int, device: str) -> int:
    """Of [positions, words] logits."""
    return max(SMALLEST[device], -(-positions // PARTS), AT_ONCE[device] // words)


def _room(wanted: tuple[bool, ...], hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor | None, ...]:
    """Where gradients are gathered. Those of the parameters in fp32: in bf16, each chunk's addition would round the sum anew."""
    return (
        torch.empty_like(hidden) if wanted[0] else None,
        torch.zeros_like(weight, dtype=torch.float32) if wanted[1] else None,
        torch.zeros_like(bias, dtype=torch.float32) if wanted[2] and bias is not None else None,
    )


@cache
def kernel_works(device: torch.device) -> bool:
    """Whether Triton can build and run the kernel on this device, tried once; reported on standard error where it cannot."""
    try:
        from finetune import cross_entropy_kernel

        cross_entropy_kernel.predict(torch.zeros(1, 2, device=device), torch.zeros(1, dtype=torch.int64, device=device), 1.0, None)
    except Exception as error:  # a missing compiler, missing headers, another driver: Triton fails in many ways
        problem = " ".join(str(error).split())[:200]
        print(
            f"warning: the loss head's kernel cannot be built on {device} ({type(error).__name__}: {problem}), so slower operations "
            "take its place; install gcc and the headers of Python (python3-dev)",
            file=sys.stderr,
            flush=True,
        )
        return False
    return True


def _predict_by_kernel(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, shaping: Shaping
) -> tuple[Tensor, Tensor, Tensor]:
    """As `_predict`, in one kernel."""
    from finetune import cross_entropy_kernel

    error = functional.linear(hidden, weight, bias)
    return error, *cross_entropy_kernel.predict(error, targets, shaping.scale, shaping.cap)


def _predict(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, shaping: Shaping) -> tuple[Tensor, Tensor, Tensor]:
    """For one chunk: the gradient [n, V] of its loss by the head's own output, in the type of `hidden`; its loss; its hits."""
    logits = functional.linear(hidden, weight, bias).float()
    slope: float | Tensor = shaping.scale
    if shaping.scale != 1.0:
        logits.mul_(shaping.scale)
    if shaping.cap is not None:
        bent = logits.div_(shaping.cap).tanh_()
        slope = shaping.scale * (1 - bent.square())
        logits = bent * shaping.cap
    right = targets.unsqueeze(1)
    chosen, highest = logits.gather(1, right), logits.amax(1, keepdim=True)
    shares = logits.sub_(highest).exp_()
    total = shares.sum(1, keepdim=True)
    nll, hits = (total.log() + highest - chosen).sum(), (chosen >= highest).sum()
    error = shares.div_(total)
    error.scatter_add_(1, right, torch.full_like(chosen, -1.0))
    if shaping != Shaping():
        error.mul_(slope)
    return error.to(hidden.dtype), nll, hits


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left · right, without a product of its own where the types agree."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif total.device.type == "cpu":  # has no product of another type than its factors'
        total += left @ right
    else:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
