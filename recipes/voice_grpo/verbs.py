"""The verbs of this recipe, and how its training data is made. Imports no torch: `--help` reads this module."""

from __future__ import annotations

from overtone.finetune.recipe import DataPreparation
from overtone.recipes.speech.cli.verbs import make_inference

INFERENCE = make_inference(__package__, has_pairs=True)
DATA = DataPreparation(
    row_keys=(frozenset({"text", "speaker"}),),
    advice="""Each line is a text that the voice is to speak, as {"text": "…", "speaker": "me"}; rows of `overtone voice` fit. Texts that
the voice was not trained on teach more.""",
)
