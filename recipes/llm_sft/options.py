"""The options of llm_sft: those of all recipes that train on chats."""

from __future__ import annotations

from overtone.recipes.language.options import ChatOptions as Options

__all__ = ["Options"]
