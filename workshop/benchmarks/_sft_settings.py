"""What a run of sft_defaults.py trains, and what it measures. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

UNTRAINED, OURS, TRL, UNSLOTH = "not trained", "overtone", "TRL's defaults", "unsloth's defaults, by TRL"
FULL, LORA = "full", "LoRA"
HELD_OUT = 40
"""Questions of a task that are in no training row."""


@dataclass(frozen=True)
class Setting:
    """What is trained, and how."""

    trainer: str
    task: str
    rows: int = 0
    way: str = FULL
    lr: float | None = None
    """None for another trainer: as it has it by default. So are its epochs."""
    epochs: int | None = None
    batch: int | None = None
    """Rows in an optimizer step; None: `train.global_batch_tokens: auto`, or another trainer's default."""
    seed: int = 0
    """Of the order of rows and of the adapters; another trainer has its own."""


@dataclass(frozen=True)
class Result:
    lr: float
    epochs: float
    steps: int
    """Optimizer steps."""
    seconds: float
    """Of the processor, from loading the model to the trained weights."""
    right: int
    """Held-out questions, of `HELD_OUT`."""
    known: int
    """General questions that are still answered, of 30."""
