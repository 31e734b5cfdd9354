"""The candidates of a selection: each checkpoint at one strength, with its name, folder and place in the order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from overtone.finetune.checkpointing import checkpoint
from overtone.recipes.speech.evaluation.systems import System


@dataclass(frozen=True)
class VoiceCandidate:
    """A checkpoint at a strength."""

    checkpoint: Path
    strength: float

    @property
    def step(self) -> int:
        return checkpoint.step_of(self.checkpoint)

    @property
    def name(self) -> str:
        return f"step {self.step}, strength {self.strength:g}"

    @property
    def slug(self) -> str:
        """Its folder name. A point in it is none of a file's ending, because `strength!r` differs for all strengths."""
        return f"step-{self.step:08d}-strength-{self.strength!r}"

    @property
    def system(self) -> System:
        """The system that speaks with it."""
        return System(self.name, self.checkpoint, "named", self.step, self.strength)


def list_candidates(checkpoints: Sequence[Path], strengths: Iterable[float]) -> list[VoiceCandidate]:
    """All of them by strength, then by step: the simplest first. At strength 0 all checkpoints are the base, so there is one candidate."""
    ordered = sorted(set(strengths))
    return [VoiceCandidate(path, strength) for strength in ordered for path in (sorted(checkpoints)[:1] if strength == 0 else checkpoints)]
