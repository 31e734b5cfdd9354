"""Runs both loss heads on the CPU, Liger's in Triton's interpreter, and writes the results to found.json in the given folder.

It is a separate process, `TRITON_INTERPRET=1 python -m tests.recipes.llm_sft.liger_interpreted FOLDER`, because Triton reads the variable
when it is imported.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from overtone.finetune.modeling.loss_head import LossHead, Shaping
from overtone.recipes.language.modeling import liger_loss
from overtone.recipes.language.modeling.liger_loss import LigerHead
from tests.recipes.llm_sft import tiny_runs

WORDS, WIDTH = 97, 16
BASED = ("train.base_distance", "0.5")


def head_and_data(rows: int, bias: bool, dtype: torch.dtype) -> tuple[nn.Linear, Tensor, Tensor]:
    """Data of which the head predicts about half correctly; 40 rows are five of Liger's chunks."""
    torch.manual_seed(3)
    linear = nn.Linear(WIDTH, WORDS, bias=bias, dtype=dtype)
    hidden = torch.randn(rows, WIDTH, dtype=dtype) * 2
    guesses = linear(hidden).argmax(1)
    return linear, hidden.requires_grad_(), guesses.where(torch.rand(rows) < 0.5, torch.randint(WORDS, (rows,)))


def outcome(kind: type[LossHead], linear: nn.Linear, hidden: Tensor, targets: Tensor) -> tuple[float, float, tuple[Tensor, ...]]:
    nll, hits = kind(linear, Shaping())(hidden, targets)
    return float(nll.detach()), float(hits), torch.autograd.grad(nll * 0.37, [hidden, *linear.parameters()])


def compared(rows: int, bias: bool, dtype: torch.dtype) -> dict[str, Any]:
    """Loss and hits of both heads (Liger's first), and relative differences of the gradients of hidden states, weight and bias."""
    given = head_and_data(rows, bias, dtype)
    nll, hits, found = outcome(LigerHead, *given)
    own_nll, own_hits, own = outcome(LossHead, *given)
    assert [each.dtype for each in found] == [each.dtype for each in own] == [dtype] * len(own)
    apart = [float((one - other).float().norm() / other.float().norm()) for one, other in zip(found, own, strict=True)]
    return {"rows": rows, "bias": bias, "dtype": str(dtype), "nll": [nll, own_nll], "hits": [hits, own_hits], "apart": apart}


def without_targets() -> list[float]:
    """Loss, hits, and the sums of the absolute gradients of hidden states and weight."""
    linear, hidden, targets = head_and_data(0, False, torch.float32)
    nll, hits, gradients = outcome(LigerHead, linear, hidden, targets)
    return [nll, hits, *(float(each.abs().sum()) for each in gradients)]


def frozen() -> dict[str, Any]:
    """Whether gradients of hidden states and of the frozen weight were kept; and the loss without gradients."""
    linear, hidden, targets = head_and_data(40, False, torch.float32)
    head = LigerHead(linear.requires_grad_(False), Shaping())
    nll, _ = head(hidden, targets)
    graph: Any = nll.grad_fn
    kept = [each is not None for each in graph.saved_tensors[:2]]
    nll.backward()
    with torch.no_grad():
        watched, _ = head(hidden, targets)
    return {"kept": kept, "hidden": hidden.grad is not None, "watched": float(watched)}


def run(folder: Path, kind: str, *overrides: tuple[str, str]) -> dict[str, Any]:
    """Losses, gradient norms, accuracies and distances to the base of three steps with `fully_shard`, and the number of calls of Liger."""
    before = liger_loss._liger_loss.cache_info()
    trained = tiny_runs.trained(folder, *overrides, ("train.steps", "3"), ("options.loss_head", kind))
    after = liger_loss._liger_loss.cache_info()
    rows = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    steps = [[row["loss"], row["grad_norm"], row["accuracy"], row.get("base_distance", 0.0)] for row in rows if "loss" in row]
    return {"steps": steps, "calls": after.hits + after.misses - before.hits - before.misses}


def main(folder: Path) -> None:
    cases = ((1, False, torch.float32), (40, False, torch.float32), (40, True, torch.float32), (40, True, torch.bfloat16))
    found = {
        "heads": [compared(*case) for case in cases],
        "without_targets": without_targets(),
        "frozen": frozen(),
        "full": {kind: run(folder / f"full_{kind}", kind, tiny_runs.FULL) for kind in ("liger", "chunked")},
        "adapted": {kind: run(folder / f"adapted_{kind}", kind, *tiny_runs.ADAPTED) for kind in ("liger", "chunked")},
        "full, with its base": {kind: run(folder / f"full_based_{kind}", kind, tiny_runs.FULL, BASED) for kind in ("liger", "chunked")},
        "adapted, with its base": {kind: run(folder / f"based_{kind}", kind, *tiny_runs.ADAPTED, BASED) for kind in ("liger", "chunked")},
    }
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
