"""The options of llm_sft: those of every recipe for causal language models."""

from __future__ import annotations

from recipes.language.options import LanguageOptions as Options

__all__ = ["Options"]
