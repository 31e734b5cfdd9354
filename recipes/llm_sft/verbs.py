"""The verbs of this recipe, and how its training data is made. Imports no torch: `--help` reads this module."""

from __future__ import annotations

from overtone.finetune.recipe import DataPreparation
from overtone.recipes.language.cli.verbs import INFERENCE

__all__ = ["DATA", "INFERENCE"]

DATA = DataPreparation(
    verb="text",
    # Of a clip of speech, reading it says which recipe trains it.
    row_keys=(frozenset({"messages"}), frozenset({"prompt", "completion"}), frozenset({"text", "ends"}), frozenset({"audio"})),
    advice="""To make some from conversations:
  overtone text chats.jsonl --out data/chats
or see the whole chain on a small example: python -m overtone.recipes.llm_sft.demo""",
)
