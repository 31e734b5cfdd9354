"""State that a run of llm_reward stores with each checkpoint: the chat template, the objective, and the names of the classes."""

from __future__ import annotations

from typing import Literal

from overtone.recipes.language.state import ChatState


class RewardState(ChatState):
    """The recipe state: what an export needs, and what must not change within a run."""

    objective: Literal["preference", "classification"]
    centering: float
    labels: list[str]
    """Names of the classes in the order of the outputs; empty for a reward model, whose only output is the reward."""

    @property
    def outputs(self) -> int:
        """Number of outputs of the head."""
        return len(self.labels) or 1
