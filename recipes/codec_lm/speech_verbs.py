"""The verbs of this recipe. Importing this module needs no torch: the command is imported when a verb is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overtone.recipes.speech.cli.verbs import SpeechVerbs

if TYPE_CHECKING:
    from overtone.recipes.speech.cli.generate import GenerateCommand


def load_command() -> GenerateCommand:
    """`overtone generate` of this recipe, with its voices."""
    from .speech_registration import COMMAND

    return COMMAND


VERBS = SpeechVerbs(load_command)
