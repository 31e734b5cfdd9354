"""How far up the spectrum of a sound reaches: shows recordings that were made, or once stored, at a low rate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data_prep.formats import Samples

SPECTRUM = 1024  # samples per frame; at 24 kHz 43 ms and 23 Hz
MOST_FRAMES = 4000
LOUD_SHARE, QUIET_SHARE = 0.95, 0.1
"""Quantile of the frames that a frequency must be loud in (fricatives make 10 % of speech, clicks less), and share that are pauses."""
PAUSE_DB = 20.0
BELOW_PEAK_DB, ABOVE_FLOOR_DB = 70.0, 12.0
"""In studio recordings fricatives lie 30 to 50 dB below the loudest band; the loud quantile of steady noise is 5 dB above its mean."""
SMOOTHED = 15  # bins: a single line, as of a screen's flyback, is no bandwidth
QUANTISATION = (1 / 32768) ** 2 / 12  # power of the rounding to 16 bits, which clips and most recordings went through


def bandwidth(samples: Samples, rate: int) -> int:
    """Hz up to which the sound stands out of its own noise: a recording of 16 kHz gives at most 8000, whatever rate it was brought to.

    The noise at each frequency is what the quietest frames hold, where these are pauses (20 dB below the loudest); never less than the
    rounding to 16 bits. 0 for silence and for less than one frame. Surer on half a minute than on a second.
    """
    if len(samples) < SPECTRUM:
        return 0
    hop = max(SPECTRUM // 2, len(samples) // MOST_FRAMES)
    window = np.blackman(SPECTRUM)
    frames = np.lib.stride_tricks.sliding_window_view(samples, SPECTRUM)[::hop] * window
    power = np.square(np.abs(np.fft.rfft(frames, axis=1)))
    loud = _smoothed(np.quantile(power, LOUD_SHARE, axis=0))
    floor = np.maximum(_smoothed(_pauses(power)), QUANTISATION * np.square(window).sum())
    heard = np.flatnonzero(loud > np.maximum(loud.max() * _ratio(-BELOW_PEAK_DB), floor * _ratio(ABOVE_FLOOR_DB)))
    return round(float(heard[-1]) * rate / SPECTRUM) if len(heard) else 0


def _pauses(power: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean spectrum of the quietest frames; zero if they are as loud as speech. `power`: [frames, bins]."""
    total = power.sum(axis=1)
    quiet = total <= np.quantile(total, QUIET_SHARE)
    is_pause = total[quiet].mean() < np.quantile(total, LOUD_SHARE) * _ratio(-PAUSE_DB)
    return power[quiet].mean(axis=0) if is_pause else np.zeros(power.shape[1])


def _smoothed(spectrum: NDArray[np.float64]) -> NDArray[np.float64]:
    around = np.pad(spectrum, SMOOTHED // 2, mode="edge")
    return np.median(np.lib.stride_tricks.sliding_window_view(around, SMOOTHED), axis=1)


def _ratio(decibel: float) -> float:
    return 10.0 ** (decibel / 10.0)
