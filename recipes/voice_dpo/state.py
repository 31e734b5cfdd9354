"""State that a run of voice_dpo stores with each checkpoint: the speakers of the base, the pairs, and the objective."""

from __future__ import annotations

from overtone.recipes.preferences.preference_options import Objective
from overtone.recipes.qwen3_tts.state import VoiceCloneState


class VoicePreferenceState(VoiceCloneState):
    """The recipe state: what an export needs, and what must not change within a run."""

    objective: Objective
    beta: float
    margin: float
    label_smoothing: float
    length_normalized: bool
