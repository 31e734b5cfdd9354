"""Five transcripts and the median log-probability at the end of a run: a text that is wrong everywhere is obvious at a glance."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from overtone.data_prep.pipeline.clip_selection import JudgedClip

COUNT = 5


def format_examples(kept: Sequence[JudgedClip]) -> str:
    """Return five kept clips, chosen by the digests of their ids: path, duration, text; and the median log-probability, for a Whisper."""
    chosen = sorted(kept, key=lambda one: hashlib.sha256(one.clip.id.encode()).digest())[:COUNT]
    lines = [f"  {one.clip.audio}  {one.clip.seconds:.1f} s  {' '.join(one.clip.text.split())}" for one in chosen]
    logprobs = [one.clip.quality.avg_logprob for one in kept if one.clip.quality.avg_logprob is not None]
    if logprobs:
        lines.append(f"median log-probability of the texts: {np.median(logprobs):.2f} (0: certain; a good Whisper has -0.1 to -0.4)")
    return "\n".join(["is this what they say?", *lines]) if lines else "no transcripts to show"
