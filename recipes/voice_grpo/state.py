"""State that a run of voice_grpo stores with each checkpoint: the speakers of the base, the texts, the rewards, and the objective."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from overtone.finetune.storage.json_schema import JsonPart
from overtone.recipes.policy.policy_options import ObjectiveName
from overtone.recipes.qwen3_tts.state import VoiceCloneState


class TextData(JsonPart):
    """The texts."""

    name: str
    sha256: str
    texts: dict[str, Annotated[int, Field(ge=1)]]
    """Speaker → number of texts; the other voices of the base stay as they are."""
    languages: list[str]
    """Languages in which they are spoken, in order."""
    unspoken: str = ""
    """The parts of the texts that are dropped, as in `2 emoji from 1 text`."""


class VoicePolicyState(VoiceCloneState):
    """The recipe state: what an export needs, and what must not change within a run. `speakers` and `data` are those of the base, with all
    its voices and the recordings that they were trained on."""

    texts: TextData
    objective: ObjectiveName
    group: int
    max_seconds: float
    clip_low: float
    clip_high: float
    kl_weight: float
    rewards: dict[str, float]
    """Weight of each part of the reward."""
    judge: dict[str, str]
    """Digests of the Whisper model, of the recordings and of the encoder, and its name."""

    @property
    def further_training(self) -> str:
        """Implements `VoiceCloneState`."""
        found, weights = self.texts, ", ".join(f"{name} {weight:g}" for name, weight in self.rewards.items() if weight)
        counts = ", ".join(f"{name} {count}" for name, count in found.texts.items())
        without = f", without {found.unspoken}" if found.unspoken else ""
        return (
            f"Rewards for its own speech: texts of `{found.name}` ({counts}){without}, SHA-256 `{found.sha256}`. "
            f"Objective: {self.objective}, groups of {self.group}. Weights of the reward: {weights}; "
            f"similarity by {self.judge['speaker_model_name']}."
        )
