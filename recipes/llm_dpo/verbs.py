"""The verbs of this recipe, and how its training data is made. Imports no torch: `--help` reads this module."""

from __future__ import annotations

from overtone.finetune.recipe import DataPreparation
from overtone.recipes.language.cli.verbs import INFERENCE

__all__ = ["DATA", "INFERENCE"]

DATA = DataPreparation(
    row_keys=(frozenset({"chosen", "rejected"}), frozenset({"completion", "label"})),
    advice="""Each line is a pair of answers to one prompt:
  {"prompt": "…", "chosen": "…", "rejected": "…"}
each a text without a template, or a list of messages; docs/preferences.md lists the forms. `overtone text --rows pairs` converts
published pairs. Without data, try the demo:
  python -m overtone.recipes.llm_dpo.demo""",
)
