"""The options of policy optimization, which recipes for text and for speech share. Imports no torch: config checks read this module."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from overtone.finetune.config import Section

ObjectiveName = Literal["grpo", "dr_grpo", "dapo"]
CLIP_HIGH: dict[ObjectiveName, float] = {"grpo": 0.2, "dr_grpo": 0.2, "dapo": 0.28}
"""Values of the papers."""


class PolicyOptions(Section):
    """Options of training by rewards for the model's own answers."""

    objective: ObjectiveName = "grpo"
    """`grpo` (Shao et al. 2024): advantages divided by the group's standard deviation, mean over each answer's tokens. `dr_grpo` (Liu et
    al. 2025): neither of these two divisions. `dapo` (Yu et al. 2025): as grpo, but all tokens of a step count equally, with a higher upper
    bound of the ratio."""
    group: int = Field(default=8, ge=2)
    """Answers to each prompt of a step."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The importance ratio of a token counts down to 1 minus this."""
    clip_high: float | None = Field(default=None, gt=0)
    """The importance ratio of a token counts up to 1 plus this; null: 0.2, and 0.28 for dapo."""
    kl_weight: float = Field(default=0.0, ge=0)
    """Weight β of the KL divergence from the base; 0 needs no base beside the model. The paper of GRPO uses 0.04."""
    max_mismatch: float = Field(default=0.1, gt=0)
    """Largest mean difference, in nats per token, between the log-probabilities of generation and of training; above it the run stops."""
    rollout_batch: int = Field(default=32, ge=1)
    """Answers that each rank generates at once: more are faster and take more memory."""

    @property
    def upper_clip(self) -> float:
        """`clip_high`, or the objective's default."""
        return CLIP_HIGH[self.objective] if self.clip_high is None else self.clip_high


def needs_reference(options: PolicyOptions) -> bool:
    """Return whether the loss compares with the base."""
    return options.kl_weight > 0


def describe_reference(options: PolicyOptions, has_adapters: bool) -> str:
    """For the log and `plan`: the base that the loss compares with, and what it takes."""
    if not needs_reference(options):
        return "reference: none (options.kl_weight is 0)"
    base = "the model with its adapters switched off" if has_adapters else "a frozen copy of the base, sharded as the model is"
    return f"reference: {base}, one more forward pass for each batch"
