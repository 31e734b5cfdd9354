"""The weights of a speech reward: each is an option of a verb or of a recipe. Must not import torch: config checks read this module."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from overtone.finetune.config import Section


class RewardWeights(Section):
    """The weight of each measure of a clip in its reward. The two scores are averaged by their weights; each guard subtracts its weight
    times its penalty from 0 to 1."""

    intelligibility: float = Field(default=1.0, ge=0)
    """Score: 1 − WER, at least 0."""
    similarity: float = Field(default=0.5, ge=0)
    """Score: cosine to the speaker's recordings, at least 0."""
    pace: float = Field(default=1.0, ge=0)
    """Guard: the sound lasts more than 1.5 times as long as the speaker takes for the text, or less than 1 / 1.5; full at factor 3."""
    ending: float = Field(default=1.0, ge=0)
    """Guard: the speech was cut off at the time limit, stops in the middle of a sound, or ends with more than a second of silence."""
    silence: float = Field(default=1.0, ge=0)
    """Guard: share of silence above 40 %."""
    clipping: float = Field(default=1.0, ge=0)
    """Guard: share of clipped samples; full at 1 %."""
    repetition: float = Field(default=1.0, ge=0)
    """Guard: share of transcribed words that repeat the words before them, beyond those of the text."""

    @model_validator(mode="after")
    def _require_score(self) -> Self:
        if not self.intelligibility + self.similarity:
            raise ValueError("intelligibility and similarity are both 0, so silence would be the best speech; give one of them a weight")
        return self
