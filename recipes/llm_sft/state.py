"""State that a run of llm_sft stores with each checkpoint: the tokens that are learned, and the chat template."""

from __future__ import annotations

from typing import Literal

from overtone.finetune.recipe import RecipeState


class SftState(RecipeState):
    """The recipe state: what an export needs, and what must not change within a run."""

    supervise: Literal["assistant", "last", "everything"]
    chat_template: str | None
    """Content of `options.chat_template`; None: the base's own."""
