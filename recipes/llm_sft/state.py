"""State that a run of llm_sft stores with each checkpoint: the chat template, and which tokens are learned."""

from __future__ import annotations

from typing import Literal

from overtone.recipes.language.state import ChatState


class SftState(ChatState):
    """The recipe state: what an export needs, and what must not change within a run."""

    supervise: Literal["assistant", "last", "everything"]
