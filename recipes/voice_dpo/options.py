"""The options of voice_dpo. Imports no torch: config checks and `--help` read this module."""

from __future__ import annotations

from typing import Literal

from overtone.recipes.preferences.preference_options import PreferenceOptions


class Options(PreferenceOptions):
    """Options of preference optimization of a voice."""

    objective: Literal["dpo", "ipo", "orpo", "simpo"] = "dpo"
    """The loss of a pair, as in llm_dpo. dpo and ipo compare with the base; orpo and simpo need no reference, and so less memory and
    time."""
