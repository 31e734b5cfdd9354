"""Averages of the similarities of Seed-TTS-eval, as `average.py` of its public scripts prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class AverageSimilarity:
    """Over utterances, rounded to three digits."""

    mean: float
    variance: float


def average_similarity(similarities: Sequence[float]) -> AverageSimilarity | None:
    """Mean and variance; None without values."""
    if not similarities:
        return None
    return AverageSimilarity(round(float(np.mean(similarities)), 3), round(float(np.var(similarities)), 3))


def format_line(clip: object, prompt: object, similarity: float) -> str:
    """The line of the public script's result file; the numbers after the names are its cuts, of which there are none."""
    return f"{clip}_0_-1|{prompt}_0_-1\t{similarity}"
