"""The verbs of this recipe, and how its training data is made. Imports no torch: `--help` reads this module."""

from __future__ import annotations

from overtone.finetune.recipe import DataPreparation
from overtone.recipes.language.cli.verbs import INFERENCE

__all__ = ["DATA", "INFERENCE"]

DATA = DataPreparation(
    row_keys=(frozenset({"prompt"}), frozenset({"messages"})),
    advice="""Each line is a prompt, with what its rewards compare an answer with:
  {"prompt": [{"role": "user", "content": "17 + 25?"}], "answer": "42"}
docs/rewards.md lists the forms and the rewards. Without data, try the demo:
  python -m overtone.recipes.llm_grpo.demo""",
)
