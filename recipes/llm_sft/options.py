"""The options of llm_sft: those of all recipes for causal language models."""

from __future__ import annotations

from recipes.language.options import LanguageOptions as Options

__all__ = ["Options"]
