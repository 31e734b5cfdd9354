"""The released model that csm trains, for docs/models.md."""

from __future__ import annotations

from overtone.finetune.recipe import ReleasedModel

from .model.model_config import RELEASED as CONFIG

RELEASED = (ReleasedModel("sesame/csm-1b", "apache-2.0", "English", {"model_type": "csm", **CONFIG}, streaming=True),)
"""Licence and language by the header of its card, which says too that it has some capacity for other languages, because of contaminated
training data, and likely will not do well."""
