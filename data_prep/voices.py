"""Who a clip sounds like: vectors of clips, and how near each is to its speaker's. What the rules make of it stands in `score`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep import speaker_encoder
from data_prep.audio import MASTER_RATE, read
from data_prep.codec_interface import LoadedSpeakerEncoder
from data_prep.score import VOICE_CLIPS
from finetune.errors import UserError

Vector = NDArray[np.float32]
LONGEST = round(30 * MASTER_RATE)
"""Samples that are listened to. More says no more, and an hour that has no pause to cut in would need 10 GB."""
CORE = 0.75
"""Part of a speaker's clips that the voice is the mean of. Half of them could all be of one recording: the others would seem strange."""
ROUNDS = 5
"""After which the same clips are near the mean as before, or change places at the border."""


def listen(encoder: LoadedSpeakerEncoder, clips: Mapping[str, Path]) -> dict[str, bytes]:
    """The vector of each clip by its id, [H] little-endian fp32; none of a clip that is too short to know a voice by.

    One clip after the other: in a batch it would have to be padded, and would sound otherwise.
    """
    sounds = ((identity, read(path, MASTER_RATE)) for identity, path in clips.items())
    vectors = {identity: encoder.embed(sound.samples[:LONGEST]) for identity, sound in sounds if sound.seconds >= speaker_encoder.SHORTEST}
    if not all(np.isfinite(vector).all() for vector in vectors.values()):
        raise UserError("the speaker encoder gives what is no number: its weights are damaged; fetch the model of --speaker-check again")
    return {identity: vector.astype("<f4").tobytes() for identity, vector in vectors.items()}


def likeness(vectors: Iterable[tuple[str, str, Vector]]) -> dict[str, float]:
    """Id → cosine to the speaker's voice, from (speaker, id, vector); none for speakers with fewer than `VOICE_CLIPS` clips."""
    groups: dict[str, dict[str, Vector]] = defaultdict(dict)
    for speaker, identity, vector in vectors:
        groups[speaker][identity] = vector
    return {
        identity: round(float(cosine), 6)
        for own in groups.values()
        if len(own) >= VOICE_CLIPS
        for identity, cosine in zip(own, cosines(np.stack([*own.values()])), strict=True)
    }


def cosines(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """[n] of each of [n, H] to the mean of the others. The quarter that is furthest from the mean does not count towards it."""
    directions = vectors.astype(np.float64)
    directions /= np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-12)
    core = np.ones(len(directions), bool)
    for _ in range(ROUNDS):
        others = directions[core].sum(axis=0) - core[:, None] * directions
        found: NDArray[np.float64] = (directions * others).sum(axis=1) / np.maximum(np.linalg.norm(others, axis=1), 1e-12)
        core = found >= np.quantile(found, 1 - CORE)
    return found
