"""The verbs of this recipe, and how its training data is made. Imports no torch: `--help` reads this module."""

from __future__ import annotations

from overtone.finetune.recipe import DataPreparation
from overtone.recipes.speech.cli.verbs import make_inference

INFERENCE = make_inference(__package__, has_pairs=True)
DATA = DataPreparation(
    row_keys=(frozenset({"chosen_codes", "rejected_codes"}),),
    advice="""Each line is a pair of clips of one text, which the voice itself spoke. To make some with an exported voice:
  overtone pairs exports/me --texts lines.txt --data data/me/val.jsonl --asr small --out data/me_pairs""",
)
