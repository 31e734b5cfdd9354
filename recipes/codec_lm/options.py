"""Options of the codec_lm recipe. Must not import torch: config checks and `--help` read this module."""

from __future__ import annotations

from typing import Literal

from overtone.recipes.language.options import LanguageOptions


class Options(LanguageOptions):
    """Options that only this recipe has."""

    supervise: Literal["speech", "everything"] = "speech"
    """Tokens that are learned: the codes and the end of speech, so that the loss is that of what is generated; or every token, the text
    too, as Orpheus' authors do."""
    speaker: str | None = None
    """Speaker of rows without a speaker."""
    family: str | None = None
    """Prompt and codec format of the model: a row of the table in `recipes/codec_lm/families.py`, such as Orpheus. Default: what an export
    says, or the row whose tokens the base's tokenizer has."""
    codec: str | None = None
    """Hub name or folder of the codec that the dataset was encoded with; an export contains it. Default: the base's own, or the one that
    the model's authors used."""
