"""The options of llm_sft."""

from __future__ import annotations

from typing import Literal

from overtone.recipes.language.options import BalancedExpertOptions


class Options(BalancedExpertOptions):
    """Options of supervised fine-tuning on chats."""

    supervise: Literal["assistant", "last", "everything"] = "assistant"
    """Tokens of a chat that are learned: every turn of the assistant, only its last turn, or every token."""
