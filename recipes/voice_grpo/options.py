"""The options of voice_grpo. Imports no torch: config checks and `--help` read this module."""

from __future__ import annotations

import math
from typing import Self

from pydantic import Field, model_validator

from overtone.finetune.config import FilePath, Section
from overtone.recipes.policy.policy_options import PolicyOptions
from overtone.recipes.qwen3_tts.model.config_factory import FRAME_RATE
from overtone.recipes.speech.preferences.reward_weights import RewardWeights


class ClipJudge(Section):
    """The models that judge a clip, and what they compare it with."""

    recordings: FilePath | None = None
    """JSONL with recordings of every speaker, as the val.jsonl of `overtone voice`: similarity and pace compare with them. Needed."""
    asr: str = "small"
    """Whisper model that transcribes the clips: a published name, or a .pt file. Evaluate with another one afterwards."""
    speaker_model: str = "resemblyzer"
    """Encoder of the similarity: `resemblyzer`, or a speaker verification model of transformers, a folder or a hub name."""


class Options(PolicyOptions):
    """Options of training a voice by rewards."""

    judge: ClipJudge = ClipJudge()
    """The models that judge clips, and the recordings that they compare with."""
    rewards: RewardWeights = RewardWeights()
    """Weight of each measure in the reward."""
    max_seconds: float = Field(default=15.0, gt=0, le=600)
    """Longest clip. A longer one is cut off, which `rewards.ending` counts against it."""

    @model_validator(mode="after")
    def _require_frames(self) -> Self:
        if self.longest_clip < 1:
            raise ValueError(f"max_seconds: {self.max_seconds:g} is less than a frame, {1 / FRAME_RATE:g} s")
        return self

    @property
    def longest_clip(self) -> int:
        """Frames of the longest clip."""
        return math.floor(self.max_seconds * FRAME_RATE)
