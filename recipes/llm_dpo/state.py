"""State that a run of llm_dpo stores with each checkpoint: the chat template, and the objective."""

from __future__ import annotations

from overtone.recipes.language.state import ChatState
from overtone.recipes.preferences.preference_options import Objective


class PreferenceState(ChatState):
    """The recipe state: what an export needs, and what must not change within a run."""

    objective: Objective
    beta: float
    margin: float
    label_smoothing: float
    length_normalized: bool
    desirable_weight: float
    undesirable_weight: float
