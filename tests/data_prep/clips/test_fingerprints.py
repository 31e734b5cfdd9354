"""Fingerprints lie on one grid of a recording, ignore the level, and survive silence."""

from __future__ import annotations

import numpy as np

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.clips.fingerprints import HOP, WINDOW, compute_fingerprint


def test_a_clip_has_the_words_of_its_recording(railway) -> None:
    whole = compute_fingerprint(railway.samples, 0, len(railway.samples))
    start, stop = 3 * MASTER_RATE + 100, 7 * MASTER_RATE
    part = compute_fingerprint(railway.samples, start, stop)
    first = -(-start // HOP)
    assert len(part) == (stop - WINDOW) // HOP - first + 1
    assert (part[1:] == whole[first + 1 : first + len(part)]).all(), "the first word has no frame before it"
    assert (compute_fingerprint(0.1 * railway.samples, start, stop)[1:] == part[1:]).mean() > 0.99


def test_silence_and_too_short_pieces_have_words_or_none() -> None:
    assert len(compute_fingerprint(np.zeros(WINDOW - 1, np.float32), 0, WINDOW - 1)) == 0
    assert compute_fingerprint(np.zeros(WINDOW, np.float32), 0, WINDOW).tolist() == [0]
