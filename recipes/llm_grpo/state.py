"""State that a run of llm_grpo stores with each checkpoint: the chat template, the objective, and how answers are generated."""

from __future__ import annotations

from overtone.recipes.language.state import ChatState
from overtone.recipes.llm_grpo.options import FailureTreatment
from overtone.recipes.policy.policy_options import ObjectiveName


class PolicyState(ChatState):
    """The recipe state: what an export needs, and what must not change within a run."""

    objective: ObjectiveName
    group: int
    max_new_tokens: int
    clip_low: float
    clip_high: float
    kl_weight: float
    dynamic_sampling: int
    weights: dict[str, float]
    """Weight of each built-in reward."""
    on_failure: FailureTreatment
    rewards: dict[str, str]
    """Digest of the settings and the file of each reward, and of the file with functions."""
