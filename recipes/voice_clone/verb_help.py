"""The verbs of this recipe, and their help without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recipes.speech.cli.verbs import SpeechVerbs

if TYPE_CHECKING:
    from recipes.speech.cli.generate import GenerateCommand


def load_command() -> GenerateCommand:
    """`finetune generate` of this recipe, with its voices."""
    from .generate_command import COMMAND

    return COMMAND


VERBS = SpeechVerbs(load_command)

DATA = """To make some from recordings:
  python -m data_prep voice my_recordings/ --out data/me --whisper small --speaker me
  python -m data_prep codes data/me --model Qwen/Qwen3-TTS-12Hz-0.6B-Base
or see the whole chain on a small example: python -m recipes.voice_clone.demo"""
"""How training data is made."""
HELP = VERBS.help
"""Verb → prints its options."""
