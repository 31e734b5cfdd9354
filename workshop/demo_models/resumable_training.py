"""Training that can be interrupted at any time: a step's batch depends only on its number, and weights and optimizer state are saved.

An interrupted and resumed run ends with the same bits as an uninterrupted one.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from torch.optim import AdamW

from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line

SAVE_EVERY = 60.0
"""Seconds."""
REPORT_EVERY = 100
"""Steps."""


@dataclass(frozen=True)
class Schedule:
    """AdamW with warm-up, constant rate, and cosine decay to almost zero."""

    steps: int
    rate: float
    plateau: float
    """Share of the steps after which the rate decays."""
    warmup: int = 50
    clip: float = 1.0
    betas: tuple[float, float] = (0.9, 0.98)

    def at(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        fall = max(0.0, (step / self.steps - self.plateau) / (1 - self.plateau))
        return self.rate * min(1.0, (step + 1) / self.warmup) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * fall)))


def train_parameters(
    place: Path, schedule: Schedule, parameters: dict[str, Tensor], loss: Callable[[int], Tensor], until: int | None = None
) -> float | None:
    """Train `parameters` in place up to step `until` (default: all of the schedule), resuming from `<place>.safetensors` if it exists.

    `loss(step)` makes its batch from the step number. Returns the mean loss of the last steps, or None if no steps were left.
    """
    optimizer = AdamW(parameters.values(), betas=schedule.betas, weight_decay=0.01, fused=True)
    first = _resume(place, parameters, optimizer)
    recent: list[float] = []
    saved = time.monotonic()
    for step in range(first, schedule.steps if until is None else until):
        for group in optimizer.param_groups:
            group["lr"] = schedule.at(step)
        optimizer.zero_grad()
        value = loss(step)
        value.backward()
        _require_gradients(parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), schedule.clip)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"{place.name}, step {step}: the gradient norm is {norm}")
        optimizer.step()
        recent = [*recent[1 - REPORT_EVERY :], float(value.detach())]
        if (step + 1) % REPORT_EVERY == 0:
            _report(place, step + 1, recent)
        if time.monotonic() - saved > SAVE_EVERY:
            _save(place, parameters, optimizer, step + 1)
            saved = time.monotonic()
    if recent:
        _save(place, parameters, optimizer, step + 1)
    return sum(recent) / len(recent) if recent else None


def _require_gradients(parameters: dict[str, Tensor]) -> None:
    missing = [name for name, tensor in parameters.items() if tensor.grad is None]
    if missing:
        raise ValueError(f"no gradient reaches {', '.join(missing)}; train only parameters that the loss depends on")


def _report(place: Path, step: int, recent: list[float]) -> None:
    line = {"step": step, "loss": round(sum(recent) / len(recent), 5), "cpu_seconds": round(time.process_time(), 1)}
    files.append_line(place.with_suffix(".jsonl"), json.dumps(line))
    print_line(f"{place.name}: {line}")


def _save(place: Path, parameters: dict[str, Tensor], optimizer: AdamW, step: int) -> None:
    tensors = {f"weight.{name}": tensor.detach() for name, tensor in parameters.items()}
    for name, tensor in parameters.items():
        tensors |= {f"{key}.{name}": value for key, value in optimizer.state[tensor].items()}
    files.write_bytes(place.with_suffix(".safetensors"), save(tensors, metadata={"step": str(step)}))


def _resume(place: Path, parameters: dict[str, Tensor], optimizer: AdamW) -> int:
    """Restore weights and optimizer state; returns the next step."""
    path = place.with_suffix(".safetensors")
    if not path.is_file():
        return 0
    with safe_open(path, framework="pt") as file:
        for name, tensor in parameters.items():
            optimizer.state[tensor] = {key: file.get_tensor(f"{key}.{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
    return restore_parameters(place, parameters)


def restore_parameters(place: Path, parameters: dict[str, Tensor]) -> int:
    """Copy the values in `<place>.safetensors` into `parameters`; returns the number of steps that they were trained."""
    with safe_open(place.with_suffix(".safetensors"), framework="pt") as file, torch.no_grad():
        for name, tensor in parameters.items():
            tensor.copy_(file.get_tensor(f"weight.{name}"))
        return int(file.metadata()["step"])
