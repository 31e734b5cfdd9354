"""The verbs of this recipe, and how its training data is made. Imports no torch: `--help` reads this module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overtone.finetune.recipe import DataPreparation
from overtone.recipes.speech.cli.verbs import SpeechVerbs

if TYPE_CHECKING:
    from overtone.recipes.speech.cli.generate import GenerateCommand


def load_command() -> GenerateCommand:
    """`generate` of this recipe, with its voices."""
    from .speech_registration import COMMAND

    return COMMAND


INFERENCE = SpeechVerbs(load_command).inference
DATA = DataPreparation(
    verb="voice",
    advice="""To make some from recordings:
  overtone voice my_recordings/ --out data/me --whisper small --speaker me
  overtone codes data/me --model sesame/csm-1b""",
)
