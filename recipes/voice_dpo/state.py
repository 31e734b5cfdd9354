"""State that a run of voice_dpo stores with each checkpoint: the speakers of the base, the pairs, and the objective."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from overtone.finetune.storage.json_schema import JsonPart
from overtone.recipes.preferences.preference_options import Objective
from overtone.recipes.qwen3_tts.state import VoiceCloneState


class PairData(JsonPart):
    """The pairs."""

    name: str
    sha256: str
    pairs: dict[str, Annotated[int, Field(ge=1)]]
    """Speaker → number of pairs; the other voices of the base stay as they are."""


class VoicePreferenceState(VoiceCloneState):
    """The recipe state: what an export needs, and what must not change within a run. `speakers` and `data` are those of the base, with all
    its voices and the recordings that they were trained on."""

    preferences: PairData
    objective: Objective
    beta: float
    margin: float
    label_smoothing: float
    length_normalized: bool

    @property
    def further_training(self) -> str:
        """Implements `VoiceCloneState`."""
        found = self.preferences
        counts = ", ".join(f"{name} {count}" for name, count in found.pairs.items())
        return (
            f"Preferences: `{found.name}`, {sum(found.pairs.values())} pairs of clips that the base spoke ({counts}), "
            f"SHA-256 `{found.sha256}`. Objective: {self.objective}, β {self.beta:g}."
        )
