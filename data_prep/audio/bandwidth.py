"""Bandwidth estimation: upper end of the spectrum, which reveals audio recorded or once stored at a low sample rate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.stream_reader import Samples

SPECTRUM = 1024  # samples per frame; at 24 kHz 43 ms and 23 Hz
MOST_FRAMES = 4000
LOUD_SHARE, QUIET_SHARE = 0.95, 0.1
"""Quantile over frames for the level of a frequency (fricatives are 10 % of speech, clicks less), and share of frames in pauses."""
PAUSE_DB = 20.0
BELOW_PEAK_DB, ABOVE_FLOOR_DB = 70.0, 12.0
"""In studio recordings fricatives are 30 to 50 dB below the loudest band; the loud quantile of steady noise is 5 dB above its mean."""
SMOOTHED = 15  # bins: suppresses single spectral lines, such as the flyback of a screen
QUANTISATION = (1 / 32768) ** 2 / 12  # power of 16-bit quantisation noise


def measure_bandwidth(samples: Samples, rate: int) -> int:
    """Return the highest frequency in Hz that stands out of the noise: at most 8000 for a 16 kHz recording, even if resampled. `samples`:
    [n].

    The noise floor at each frequency comes from the quietest frames, if they are pauses (20 dB below the loudest), and is at least 16-bit
    quantisation noise. 0 for silence and for less than one frame. More reliable on half a minute than on a second.
    """
    if len(samples) < SPECTRUM:
        return 0
    hop = max(SPECTRUM // 2, len(samples) // MOST_FRAMES)
    window = np.blackman(SPECTRUM)
    frames = np.lib.stride_tricks.sliding_window_view(samples, SPECTRUM)[::hop] * window
    power = np.square(np.abs(np.fft.rfft(frames, axis=1)))
    loud = _smooth_spectrum(np.quantile(power, LOUD_SHARE, axis=0))
    floor = np.maximum(_smooth_spectrum(_average_pauses(power)), QUANTISATION * np.square(window).sum())
    audible = np.flatnonzero(loud > np.maximum(loud.max() * _decibel_to_power(-BELOW_PEAK_DB), floor * _decibel_to_power(ABOVE_FLOOR_DB)))
    return round(float(audible[-1]) * rate / SPECTRUM) if len(audible) else 0


def _average_pauses(power: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean power [bins] of the quietest frames; zeros if they are as loud as speech. `power`: [frames, bins]."""
    total = power.sum(axis=1)
    quiet = total <= np.quantile(total, QUIET_SHARE)
    is_pause = total[quiet].mean() < np.quantile(total, LOUD_SHARE) * _decibel_to_power(-PAUSE_DB)
    return power[quiet].mean(axis=0) if is_pause else np.zeros(power.shape[1])


def _smooth_spectrum(spectrum: NDArray[np.float64]) -> NDArray[np.float64]:
    around = np.pad(spectrum, SMOOTHED // 2, mode="edge")
    return np.median(np.lib.stride_tricks.sliding_window_view(around, SMOOTHED), axis=1)


def _decibel_to_power(decibel: float) -> float:
    return 10.0 ** (decibel / 10.0)
