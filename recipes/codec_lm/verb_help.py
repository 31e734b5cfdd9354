"""Help of the verbs of this recipe. Must not import torch: `--help` reads this module."""

from __future__ import annotations

from .speech_verbs import VERBS

DATA_VERB = "voice"
"""Of data_prep: converts raw data."""
HELP = VERBS.help
"""Verb → prints its options."""
