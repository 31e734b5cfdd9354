"""State that a run of whisper stores with each checkpoint: what the exported model transcribes unless it is given something else."""

from __future__ import annotations

from overtone.finetune.recipe import RecipeState


class WhisperState(RecipeState):
    """The recipe state."""

    language: str | None
    """Whisper's code of `options.language`; None if the rows name it, or the model knows English alone."""
    task: str
    """`options.task`."""
