"""Help of the verbs of this recipe. Must not import torch: `--help` reads this module."""

from __future__ import annotations

from .speech_verbs import VERBS

HELP = VERBS.help
"""Verb → prints its options."""
