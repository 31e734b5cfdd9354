"""Options of whisper. Must not import torch: config checks and `--help` read this module."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from overtone.finetune.config import Section


class Options(Section):
    """Options that only this recipe has."""

    language: str | None = None
    """Language of the rows that name none, or `auto`: an English name or a code of Whisper (german, de). English-only models need none."""
    task: Literal["transcribe", "translate"] = "transcribe"
    """Task of rows without a "task": their text is the words in their own language, or the translation to English."""
    freeze_encoder: bool = False
    """Train only the decoder, with `model.lora` only its adapters: the activations of the encoder are not stored. Train the encoder too
    for noise, telephone sound or accents that are new to it."""
    time_masks: int = Field(default=0, ge=0, le=100)
    """Hide that many random stretches of time of each training clip (SpecAugment, Park et al. 2019, arXiv:1904.08779)."""
    time_mask_share: float = Field(default=0.05, gt=0, le=1)
    """Largest share of a clip that one stretch hides (Park et al. 2019, arXiv:1912.05533)."""
    mel_masks: int = Field(default=0, ge=0, le=100)
    """Hide that many random bands of frequencies of each training clip."""
    mel_mask_bands: int = Field(default=15, ge=1, le=128)
    """Largest number of neighbouring mel bands that one mask hides; Whisper has 80 or 128."""
