"""Compares the waveforms of two clips, to decide whether they hold the same recording in every word.

A fingerprint describes 256 ms at a time, so sentences of one synthetic voice that differ in a word have nearly equal fingerprints. Copies
of a recording also have the same waveform, at any level and in any usual codec; another word has a different one, even with the same vowel.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import MASTER_RATE, Samples

RATE = 16_000
BAND_HZ = (200.0, 3600.0)
"""Within telephone bandwidth, without hum."""
EMPHASIS = 0.9
"""Emphasis of the high frequencies, in which the words differ: in vowels and nasals, most of the power is in the pitch."""
BLOCK, BLOCKS = 160, 9
"""Samples at `RATE`: correlations are computed in windows of 90 ms, 10 ms apart."""
SEARCH = 2 * 768 * RATE // MASTER_RATE
"""Largest error of the known offset, in samples: two frames of the fingerprint."""
DRIFT = 16
"""Samples by which two clocks may differ inside a clip: 1 ms is 100 millionths of 10 s."""
LOUD_DB, CLEAR_DB = 20.0, 15.0
"""A window counts if one clip is at most `LOUD_DB` below its loud parts there, and at least `CLEAR_DB` above its quiet parts. Noise changes
the others."""
LOUD_SHARE, QUIET_SHARE = 0.9, 0.08
SAME_WAVEFORM = 0.35
"""Least correlation of the windows of two copies."""


def prepare_waveform(samples: Samples) -> Samples:
    """Return the samples [m] at `RATE`, band-limited and with emphasized high frequencies, for `agrees_throughout`. `samples`: [n] at
    `MASTER_RATE`."""
    import soxr

    wave = soxr.resample(samples.astype(np.float32), MASTER_RATE, RATE)
    size = 1 << max(len(wave) - 1, 1).bit_length()
    spectrum, hertz = np.fft.rfft(wave, size), np.fft.rfftfreq(size, 1 / RATE)
    spectrum[(hertz < BAND_HZ[0]) | (hertz > BAND_HZ[1])] = 0
    band = np.fft.irfft(spectrum, size)[: len(wave)]
    return np.diff(band, prepend=0.0).astype(np.float32) + np.float32(1 - EMPHASIS) * np.roll(band, 1).astype(np.float32)


def agrees_throughout(one: Samples, other: Samples, offset: int) -> bool:
    """Return whether two prepared waveforms [m] are nearly the same in every window with speech, where both have samples. Returns True if
    there is no speech.

    `offset`: sample of `one`, at `RATE`, at which `other` begins, give or take `SEARCH`.
    """
    begin, end = max(0, offset), min(len(one), len(other) + offset)
    count = (end - begin) // BLOCK
    if count < BLOCKS:
        return True
    left = one[begin : begin + count * BLOCK]
    padded = np.pad(other, SEARCH + DRIFT)
    near = padded[begin - offset : begin - offset + len(left) + 2 * (SEARCH + DRIFT)]
    shift = _find_shift(left, near[DRIFT:-DRIFT])
    heard = _find_clear(left) | _find_clear(near[shift + DRIFT :][: len(left)])
    for shifts in ([shift + DRIFT], range(shift, shift + 2 * DRIFT + 1)):  # few clocks drift
        best = np.max([_correlate_windows(left, near[first:][: len(left)]) for first in shifts], axis=0)
        if best[heard].min(initial=1.0) >= SAME_WAVEFORM:
            return True
        worst = int(np.where(heard, best, 1.0).argmin()) * BLOCK
        part = left[worst : worst + BLOCKS * BLOCK]
        lags = np.lib.stride_tricks.sliding_window_view(near[shift + worst :][: len(part) + 2 * DRIFT], len(part))
        if max(_correlate_windows(part, lag)[0] for lag in lags) < SAME_WAVEFORM:
            return False
    return False


def _find_shift(part: Samples, whole: Samples) -> int:
    """Return the sample of `whole` [n + 2 * SEARCH] at which it is most like `part` [n]."""
    size = 1 << (len(whole) - 1).bit_length()
    correlation = np.fft.irfft(np.fft.rfft(whole, size) * np.conj(np.fft.rfft(part, size)), size)
    return int(correlation[: 2 * SEARCH + 1].argmax())


def _correlate_windows(left: Samples, right: Samples) -> NDArray[np.float64]:
    """Return the correlation [windows] of two waveforms [blocks x BLOCK]."""
    power = _sum_windows(left * left) * _sum_windows(right * right)
    return _sum_windows(left * right) / np.sqrt(power + 1e-20)


def _sum_windows(values: Samples) -> NDArray[np.float64]:
    """Return the sums [windows] of `values` [blocks x BLOCK]."""
    blocks = values.reshape(-1, BLOCK).sum(axis=1, dtype=np.float64)
    return np.convolve(blocks, np.ones(BLOCKS), "valid")


def _find_clear(wave: Samples) -> NDArray[np.bool_]:
    """Return [windows]: True if the window is loud, and above the noise."""
    level = 10 * np.log10(_sum_windows(wave * wave) + 1e-12)
    quiet, loud = np.quantile(level, [QUIET_SHARE, LOUD_SHARE])
    found: NDArray[np.bool_] = (level > loud - LOUD_DB) & (level > quiet + CLEAR_DB)
    return found
