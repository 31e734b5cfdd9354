"""Clips with the same sound are found at the offset of their recordings, with the samples that they share."""

from __future__ import annotations

import numpy as np

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.clips.fingerprint_matching import FingerprintedClip, compare_clips, find_matches
from overtone.data_prep.clips.fingerprints import HOP, compute_fingerprint


def test_matches_name_the_shared_samples(railway) -> None:
    samples = railway.samples[: 10 * MASTER_RATE]
    moved = np.concatenate([np.zeros(40 * HOP, np.float32), samples])
    one = FingerprintedClip("a", "first", 0, len(samples), compute_fingerprint(samples, 0, len(samples)))
    other = FingerprintedClip("b", "second", 0, len(moved), compute_fingerprint(moved, 0, len(moved)))
    (match,) = find_matches([other, one])
    assert (match.one, match.other, match.samples) == ("a", "b", len(samples))
    assert match.distance < 0.01
    assert match.offset == -40 * HOP
    assert compare_clips(one, other, 0) is None, "at another offset, they differ"
