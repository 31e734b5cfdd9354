"""The kernel of the loss head beside full logits on the CPU, by Triton's interpreter; prints what it found as one line of JSON.

A process of its own, `TRITON_INTERPRET=1 python -m tests.finetune.cross_entropy_interpreted`: Triton decides at its import.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from overtone.finetune.modeling import cross_entropy_kernel, loss_head
from overtone.finetune.modeling.loss_head import LossHead, Shaping
from tests.finetune.modeling.test_loss_head import SHAPINGS, full, head_and_data


def gradients(nll: Tensor, hidden: Tensor, linear: nn.Linear) -> list[Tensor]:
    return [each.double() for each in torch.autograd.grad(nll * 0.37, [hidden, *linear.parameters()])]


def apart(found: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest relative distance."""
    return max(float((one - other).norm() / other.norm()) for one, other in zip(found, wanted, strict=True))


def compared(words: int, bias: bool, dtype: torch.dtype, shaping: Shaping) -> dict[str, Any]:
    """Of the kernel and of the CPU's own operations: loss, hits, and the distance of their gradients from those of full logits in fp64."""
    linear, hidden, targets = head_and_data(20, words=words, bias=bias, dtype=dtype)
    targets = torch.stack([targets, targets.flip(0), targets * 0], 1)[:, 0]  # a column of a matrix, as codes of one codebook are
    targets[::3] = linear(hidden[::3]).argmax(1)  # so that there are hits
    exact = nn.Linear(linear.in_features, words, bias=bias, dtype=torch.float64)
    exact.load_state_dict({name: value.double() for name, value in linear.state_dict().items()})
    inputs = hidden.double().requires_grad_()
    logits = exact(inputs) * shaping.scale
    logits = logits if shaping.cap is None else torch.tanh(logits / shaping.cap) * shaping.cap
    truth = gradients(nn.functional.cross_entropy(logits, targets, reduction="sum"), inputs, exact)
    found: dict[str, Any] = {"exact": float(nn.functional.cross_entropy(logits, targets, reduction="sum").detach())}
    for name, predict in (("kernel", loss_head._predict_by_kernel), ("operations", loss_head._predict)):
        own = hidden.clone().requires_grad_()
        in_chunks = (mock.patch.dict(loss_head.SMALLEST, cpu=7), mock.patch.dict(loss_head.AT_ONCE, cpu=1))
        with mock.patch.object(loss_head, "_predict", predict), in_chunks[0], in_chunks[1]:
            nll, hits = LossHead(linear, shaping)(own, targets)
        found[name] = {"nll": float(nll.detach()), "hits": float(hits), "apart": apart(gradients(nll, own, linear), truth)}
    assert full(linear, hidden, targets, shaping)[1] == found["operations"]["hits"]
    return {"case": [words, bias, str(dtype), str(shaping)], "dtype": str(dtype), **found}


def of_nothing_that_is_finite() -> list[float]:
    """The losses of a row with a NaN, and of one that is infinitely wrong."""
    rows = torch.zeros(2, 40)
    rows[0, 3], rows[1, 3] = float("nan"), -float("inf")
    return [float(cross_entropy_kernel.predict(row[None], torch.tensor([3]), 1.0, None)[0]) for row in rows]


def main() -> None:
    assert cross_entropy_kernel.LARGEST_BLOCK < 5000, "the last case takes two blocks"
    cases = [(97, True, torch.float32, shaping) for shaping in SHAPINGS]
    cases += [(97, False, torch.bfloat16, shaping) for shaping in SHAPINGS[::3]]
    cases += [(5000, False, torch.float32, SHAPINGS[0]), (5000, False, torch.bfloat16, SHAPINGS[-1])]
    found = {"heads": [compared(*case) for case in cases], "not finite": of_nothing_that_is_finite()}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
