"""Chunked loss head: output projection and cross-entropy fused over chunks of positions, so that the full logits are never materialized.

Full logits are the largest tensors in a training step of a small model: 16,384 positions over Qwen3's vocabulary of 151,936 take 10 GB in
fp32, and again for their gradient. Here each chunk's logits are reduced to its loss and gradients, and freed. Gradients are computed in the
forward pass, since the gradient of a sum is known up to one factor from the backward pass; so no matrix product is computed twice. Weights
and states must have the same type, as sharding casts them: autocast does not apply here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from overtone.finetune.terminal import print_diagnostic

PARTS = 64
"""Maximum number of chunks."""
SMALLEST = {"cpu": 256, "cuda": 2048}
"""Minimum rows of a chunk; with fewer, matrix products are limited by memory bandwidth. For each chunk a GPU reads the weight twice, and
reads and writes its fp32 gradient: 3.7 GB for Qwen3-1.7B, while 2,048 rows need 1.9 · 10¹² multiply-adds."""
AT_ONCE = {"cpu": 2**19, "cuda": 2**22}
"""Minimum logits of a chunk: 2 MB, which fit into a CPU's cache, or 16 MB, below which a GPU is limited by kernel launches."""


@dataclass(frozen=True)
class Shaping:
    """Transformation of the logits z after the head: scale · z, then soft-capping cap · tanh(z / cap)."""

    scale: float = 1.0
    cap: float | None = None
    """None: no cap."""


class LossHead(nn.Module):
    """A linear output head [V, H] that returns the loss instead of logits."""

    def __init__(self, linear: nn.Linear, shaping: Shaping = Shaping()) -> None:
        """Uses the parameters of `linear`, under the same names."""
        super().__init__()
        self.weight, self.bias, self.shaping = linear.weight, linear.bias, shaping

    def forward(self, hidden: Tensor, targets: Tensor, base_states: Tensor | None = None, each: bool = False) -> tuple[Tensor, ...]:
        """Hidden states [N, H] and target tokens [N] → fp32 scalars: the summed negative log-likelihood in nats, and the number of
        targets with the highest logit; with the hidden states of a frozen base [N, H], also the summed distance to it (`BaseHead`).
        With `each`, only the log-probability of each target [N] in nats, fp32 or the type of the states if that is wider."""
        if each:
            return (_TargetScores.apply(hidden, self.weight, self.bias, targets, self.shaping),)
        nll, hits = _Chunked.apply(hidden, self.weight, self.bias, targets, self.shaping, torch.is_grad_enabled())
        return (nll, hits) if base_states is None else (nll, hits, self.measure_distance(hidden, base_states))

    def measure_distance(self, hidden: Tensor, base_states: Tensor) -> Tensor:
        """Return the sum of `BaseHead`, an fp32 scalar with gradients for hidden states and weight. The base's head is `base_head`, or
        without one this head, whose weights are then not trained. Call it only from `forward`, in which sharding has gathered the
        weights."""
        compare = self.__dict__.get("base_head") or BaseHead(self)
        distance: Tensor = _Distance.apply(hidden, self.weight, self.bias, base_states, compare, torch.is_grad_enabled())
        return distance

    def set_base_head(self, head: BaseHead) -> None:
        """Compare with this head of a frozen copy of the base from now on. It becomes no submodule: it is not trained, saved or exported
        with this head."""
        self.__dict__["base_head"] = head


class BaseHead(nn.Module):
    """The output head [V, H] of a frozen base, which measures how far a trained head's predictions are from its own.

    The distance is KL(base ‖ model) = Σ_v p(v) · (log p(v) − log q(v)), with p the base's distribution over the next token and q the
    model's, in nats: the regularization by which Yu et al. 2013 (KL-divergence regularized deep neural network adaptation, ICASSP, eq. 4)
    adapt an acoustic model to a speaker, and, up to the entropy of p, the distillation loss of Learning without Forgetting (Li & Hoiem
    2016, arXiv:1606.09282). This direction penalizes the model for what the base considers possible and the model does not, so it preserves
    what the base knows. KL(model ‖ base), as in RLHF (Ziegler et al. 2019, arXiv:1909.08593), is an expectation over the model's own
    samples; at the positions of given data, it would allow the model to drop all alternatives but one.
    """

    def __init__(self, head: LossHead) -> None:
        """Uses the parameters of `head`, under the same names."""
        super().__init__()
        self.weight, self.bias, self.shaping = head.weight, head.bias, head.shaping

    @torch.no_grad()
    def forward(
        self, states: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, wanted: tuple[bool, ...]
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """States of the base [N, H]; hidden states [N, H], weight [V, H] and bias [V] of the model → the distance summed over N positions,
        an fp32 scalar, and its gradients for the last three inputs, as far as they are `wanted`.

        Gradients are results, because sharding casts floating-point inputs, fp32 buffers for gradients included.
        """
        of_hidden, of_weight, of_bias = gradients = _allocate_gradients(wanted, hidden, weight, bias)
        distance = torch.zeros((), device=hidden.device)
        rows = rows_of_a_chunk(len(hidden), len(weight), hidden.device.type)
        for part in (slice(start, start + rows) for start in range(0, len(hidden), rows)):
            # As arguments, not as variables, which would keep both beside the fp32 copies.
            error, its_distance = _compare(
                functional.linear(hidden[part], weight, bias), functional.linear(states[part], self.weight, self.bias), self.shaping
            )
            distance += its_distance
            if of_hidden is not None:
                torch.mm(error, weight, out=of_hidden[part])
            if of_weight is not None:
                _add_product(of_weight, error.T, hidden[part])
            if of_bias is not None:
                of_bias += error.sum(0)
            del error  # as in `_Chunked`
        return distance, gradients


class Context(Protocol):
    """The object in which `torch.autograd.Function` keeps values between forward and backward."""

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor | None, ...]
    dtypes: list[torch.dtype | None]
    """Types of the inputs that get a gradient."""

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...

    def mark_non_differentiable(self, *outputs: Tensor) -> None: ...


class _Distance(torch.autograd.Function):
    """Attaches the gradients that a `BaseHead` has computed. Called in here, sharding sees no graph, and gathers it only once."""

    @staticmethod
    def forward(
        ctx: Context, hidden: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor, compare: BaseHead, learning: bool
    ) -> Tensor:
        wanted = tuple(ctx.needs_input_grad[:3]) if learning else (False,) * 3
        distance, gradients = compare(states, hidden, weight, bias, wanted)
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (hidden, weight, bias)]
        ctx.save_for_backward(*gradients)
        result: Tensor = distance
        return result

    @staticmethod
    def backward(ctx: Context, factor: Tensor) -> tuple[Tensor | None, ...]:
        return (*_scale_gradients(ctx, factor), None, None, None)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, shaping: Shaping, learning: bool
    ) -> tuple[Tensor, Tensor]:
        of_hidden, of_weight, of_bias = _allocate_gradients(ctx.needs_input_grad if learning else (False,) * 3, hidden, weight, bias)
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
            del error  # otherwise it would still be allocated beside the next chunk's logits
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (hidden, weight, bias)]
        ctx.save_for_backward(of_hidden, of_weight, of_bias)
        ctx.mark_non_differentiable(hits)
        return nll, hits

    @staticmethod
    def backward(ctx: Context, factor: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return (*_scale_gradients(ctx, factor), None, None, None)


class _TargetScores(torch.autograd.Function):
    """The log-probability of each target. How much each counts is known only when all are, so the backward pass computes the logits of a
    chunk again; it holds one chunk at a time, as the forward pass does."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, shaping: Shaping) -> Tensor:
        ctx.save_for_backward(hidden, weight, bias, targets)
        ctx.shaping = shaping
        scores = torch.empty(len(hidden), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
        rows = rows_of_a_chunk(len(hidden), len(weight), hidden.device.type)
        for part in (slice(start, start + rows) for start in range(0, len(hidden), rows)):
            logits, _ = _shape_logits(functional.linear(hidden[part], weight, bias).to(scores.dtype), shaping)
            scores[part] = logits.gather(1, targets[part].unsqueeze(1)).squeeze(1) - logits.logsumexp(1)
        return scores

    @staticmethod
    def backward(ctx: Any, factors: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        of_weight = torch.zeros_like(weight, dtype=factors.dtype) if ctx.needs_input_grad[1] else None
        of_bias = torch.zeros_like(bias, dtype=factors.dtype) if ctx.needs_input_grad[2] else None
        rows = rows_of_a_chunk(len(hidden), len(weight), hidden.device.type)
        for part in (slice(start, start + rows) for start in range(0, len(hidden), rows)):
            logits, slope = _shape_logits(functional.linear(hidden[part], weight, bias).to(factors.dtype), ctx.shaping)
            error = logits.softmax(1).neg_()
            error.scatter_add_(1, targets[part].unsqueeze(1), torch.ones_like(error[:, :1]))
            error = error.mul_(slope).mul_(factors[part].unsqueeze(1)).to(hidden.dtype)
            if of_hidden is not None:
                torch.mm(error, weight, out=of_hidden[part])
            if of_weight is not None:
                _add_product(of_weight, error.T, hidden[part])
            if of_bias is not None:
                of_bias += error.sum(0)
            del logits, error  # otherwise they would still be allocated beside the next chunk's logits
        return (
            of_hidden,
            None if of_weight is None else of_weight.to(weight.dtype),
            None if of_bias is None else of_bias.to(bias.dtype),
            None,
            None,
        )


def _scale_gradients(ctx: Context, factor: Tensor) -> list[Tensor | None]:
    """The saved gradients times `factor`, in the types of the inputs."""
    # In place: a second copy of the weight's gradient would be as large as the head. A second backward raises.
    return [
        None if gradient is None else gradient.mul_(factor).to(dtype) for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
    ]


def of_logits(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of `LossHead`, from full logits [N, V] and targets [N]."""
    nll = functional.cross_entropy(logits.float(), targets, reduction="sum")
    return nll, (logits.detach().argmax(-1) == targets).sum().float()


def rows_of_a_chunk(positions: int, words: int, device: str) -> int:
    """Return the rows per chunk of logits [positions, words]."""
    return max(SMALLEST[device], -(-positions // PARTS), AT_ONCE[device] // words)


def _allocate_gradients(wanted: tuple[bool, ...], hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor | None, ...]:
    """Buffers for the gradients. Those of parameters are fp32: in bf16, each chunk's addition would round the sum."""
    return (
        torch.empty_like(hidden) if wanted[0] else None,
        torch.zeros_like(weight, dtype=torch.float32) if wanted[1] else None,
        torch.zeros_like(bias, dtype=torch.float32) if wanted[2] and bias is not None else None,
    )


@cache
def kernel_works(device: torch.device) -> bool:
    """Return whether Triton can build and run the kernel on this device, tried once; reported on standard error where it cannot."""
    try:
        from overtone.finetune.modeling import cross_entropy_kernel

        cross_entropy_kernel.predict(torch.zeros(1, 2, device=device), torch.zeros(1, dtype=torch.int64, device=device), 1.0, None)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a missing compiler, missing headers, another driver: Triton fails in many ways
        problem = " ".join(str(error).split())[:200]
        print_diagnostic(
            f"warning: the loss head's kernel cannot be built on {device} ({type(error).__name__}: {problem}), so slower operations "
            "take its place; install gcc and the headers of Python (python3-dev)"
        )
        return False
    return True


def _predict_by_kernel(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, shaping: Shaping
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the results of `_predict` in one kernel."""
    from overtone.finetune.modeling import cross_entropy_kernel

    error = functional.linear(hidden, weight, bias)
    return error, *cross_entropy_kernel.predict(error, targets, shaping.scale, shaping.cap)


def _predict(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, shaping: Shaping) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for one chunk, the gradient [n, V] of its loss with respect to the head's output, in the type of `hidden`; its loss; and its
    number of correct predictions."""
    logits, slope = _shape_logits(functional.linear(hidden, weight, bias).float(), shaping)
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


def _compare(model: Tensor, base: Tensor, shaping: Shaping) -> tuple[Tensor, Tensor]:
    """Outputs of the model's and of the base's head [n, V] for one chunk, which are overwritten → the gradient [n, V] of its distance with
    respect to the model's output, in its type, and the distance. At most three tensors [n, V] in fp32 exist at a time, without a cap."""
    dtype = model.dtype
    model, slope = _shape_logits(model.float(), shaping)
    base, _ = _shape_logits(base.float(), shaping)
    model.sub_(model.logsumexp(1, keepdim=True))
    base.sub_(base.logsumexp(1, keepdim=True))
    shares = base.exp()
    distance = base.sub_(model).mul_(shares).sum()
    error = model.exp_().sub_(shares)
    if shaping != Shaping():
        error.mul_(slope)
    return error.to(dtype), distance


def _shape_logits(logits: Tensor, shaping: Shaping) -> tuple[Tensor, float | Tensor]:
    """fp32 outputs of a head [n, V], which are overwritten → logits, and their slope with respect to these outputs."""
    slope: float | Tensor = shaping.scale
    if shaping.scale != 1.0:
        logits.mul_(shaping.scale)
    if shaping.cap is not None:
        bent = logits.div_(shaping.cap).tanh_()
        slope = shaping.scale * (1 - bent.square())
        logits = bent * shaping.cap
    return logits, slope


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left · right to `total`, without a temporary for the product if possible."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif total.device.type == "cpu":  # addmm on a CPU needs equal types
        total += left @ right
    else:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
