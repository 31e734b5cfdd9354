"""Speaker embeddings of clips, and speaker similarity: the cosine of each clip to the mean of its speaker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import read_audio
from overtone.data_prep.audio_codecs.interface import LoadedSpeakerEncoder
from overtone.data_prep.clips.quality_rules import VOICE_CLIPS
from overtone.finetune.errors import UserError

Vector = NDArray[np.float32]
LONGEST_SECONDS = 30
"""Maximum seconds of a clip that are encoded; more do not improve the embedding, and an hour without a pause would need 10 GB."""
CORE = 0.75
"""Share of a speaker's clips in the mean embedding. With a half, all could come from one recording, and the others would be outliers."""
ROUNDS = 5
"""Iterations; after these the selected clips are stable, or alternate at the border."""


def embed_clips(encoder: LoadedSpeakerEncoder, clips: Mapping[str, Path]) -> dict[str, bytes]:
    """Return the vector of each clip by its id, [H] little-endian fp32; clips shorter than `encoder.shortest_seconds` are omitted.

    Clips are encoded one by one, because padding in a batch would change the embedding.
    """
    longest = LONGEST_SECONDS * encoder.sample_rate
    sounds = ((identity, read_audio(path, encoder.sample_rate)) for identity, path in clips.items())
    vectors = {identity: encoder.embed(sound.samples[:longest]) for identity, sound in sounds if sound.seconds >= encoder.shortest_seconds}
    if not all(np.isfinite(vector).all() for vector in vectors.values()):
        raise UserError("the speaker encoder returned NaN or Inf: its weights are damaged; download the model of --speaker-check again")
    return {identity: vector.astype("<f4").tobytes() for identity, vector in vectors.items()}


def compute_speaker_cosines(vectors: Iterable[tuple[str, str, Vector]]) -> dict[str, float]:
    """Return id → cosine to the speaker's mean, from (speaker, id, vector [H]); omits speakers with fewer than `VOICE_CLIPS` clips."""
    groups: dict[str, dict[str, Vector]] = defaultdict(dict)
    for speaker, identity, vector in vectors:
        groups[speaker][identity] = vector
    return {
        identity: round(float(cosine), 6)
        for own in groups.values()
        if len(own) >= VOICE_CLIPS
        for identity, cosine in zip(own, compute_cosines_to_mean(np.stack([*own.values()])), strict=True)
    }


def compute_cosines_to_mean(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the cosine [n] of each vector in [n, H] to the mean of the others; the furthest quarter is excluded from the mean."""
    directions = vectors.astype(np.float64)
    directions /= np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-12)
    core = np.ones(len(directions), bool)
    for _ in range(ROUNDS):
        others = directions[core].sum(axis=0) - core[:, None] * directions
        found: NDArray[np.float64] = (directions * others).sum(axis=1) / np.maximum(np.linalg.norm(others, axis=1), 1e-12)
        core = found >= np.quantile(found, 1 - CORE)
    return found
