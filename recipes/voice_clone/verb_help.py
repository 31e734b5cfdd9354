"""Help of the verbs of this recipe, and how its training data is made. Must not import torch: `--help` reads this module."""

from __future__ import annotations

from .speech_verbs import VERBS

DATA = """To make some from recordings:
  overtone voice my_recordings/ --out data/me --whisper small --speaker me
  overtone codes data/me --model Qwen/Qwen3-TTS-12Hz-0.6B-Base
or see the whole chain on a small example: python -m overtone.recipes.voice_clone.demo"""
"""How training data is made."""
DATA_VERB = "voice"
"""Of data_prep: converts raw data."""
HELP = VERBS.help
"""Verb → prints its options."""
