"""Features of a frame of 80 ms that can be predicted and clustered: 8 log-mel spectra, and pitch and voicing at 50 Hz.

Every window ends within its frame, because the codec's encoder is causal and cannot know what follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.signal import decimate
from torch import Tensor

from overtone.data_prep.audio.librosa_import import import_librosa
from overtone.data_prep.audio.waveform import MASTER_RATE, Samples
from overtone.data_prep.audio_codecs.qwen3_tts_codec import SAMPLES_PER_FRAME

HOP, WINDOW, FFT, BANDS = 240, 800, 1024, 64
SPECTRA = SAMPLES_PER_FRAME // HOP
"""Per frame."""
LOWEST_HZ, HIGHEST_HZ = 40, 8000
"""Most of the synthesizers' voices end at 8 kHz."""
FLOOR = 1e-5
"""Added to the power before the logarithm, relative to full scale 1.0, so that all sound below -50 dB counts as silence."""
PITCH_RATE, PITCH_WINDOW, PITCH_HOP = 8000, 400, 160
PITCH_HZ = (70, 300)
PITCHES = SAMPLES_PER_FRAME * PITCH_RATE // MASTER_RATE // PITCH_HOP
"""Per frame."""
USUAL_LOG_HZ = 4.9
PITCH_WEIGHT, VOICING_WEIGHT = 12.0, 3.0
"""Relative to the spectra. Without these weights, clusters would ignore pitch, and voices would sound the same."""
LENGTH = SPECTRA * BANDS + 2 * PITCHES


@dataclass(frozen=True)
class FrameFeatures:
    """Features of one clip of T frames at its own level."""

    power: Tensor
    """[8·T, 64] mel power."""
    log_hz: Tensor
    """[T, 4] natural logarithm of the pitch, linearly interpolated through unvoiced stretches."""
    voicing: Tensor
    """[T, 4], 0 … 1."""

    def log_mel(self, gain: float) -> Tensor:
        """[8·T, 64] at another level; `gain` multiplies the samples."""
        return (self.power * gain**2 + FLOOR).log()

    def vectors(self, gain: float) -> Tensor:
        """[T, LENGTH]: all features of each frame, weighted."""
        spectra = self.log_mel(gain).reshape(len(self.log_hz), SPECTRA * BANDS)
        return torch.cat([spectra, (self.log_hz - USUAL_LOG_HZ) * PITCH_WEIGHT, self.voicing * VOICING_WEIGHT], dim=1)


def slice_spectra(vectors: Tensor) -> Tensor:
    """The log-mel spectra, […, 8·T, 64], in vectors of features […, T, LENGTH]."""
    return vectors[..., : SPECTRA * BANDS].unflatten(-1, (SPECTRA, BANDS)).flatten(-3, -2)


def pad_to_frames(samples: Samples) -> Samples:
    """Append zeros up to a whole frame; otherwise the last frame would depend on the padding of its batch."""
    return np.pad(samples, (0, -len(samples) % SAMPLES_PER_FRAME))


def extract_features(samples: Samples) -> FrameFeatures:
    """Features of samples [n] at 24 kHz, n a multiple of a frame."""
    log_hz, voicing = estimate_pitch(samples)
    return FrameFeatures(
        compute_mel_power(torch.from_numpy(samples)), *(torch.from_numpy(track).float().view(-1, PITCHES) for track in (log_hz, voicing))
    )


@cache
def make_mel_filters() -> Tensor:
    """[64, 513]; the weights of each band sum to 1."""
    bands = torch.from_numpy(
        import_librosa().filters.mel(sr=MASTER_RATE, n_fft=FFT, n_mels=BANDS, fmin=LOWEST_HZ, fmax=HIGHEST_HZ, norm=None)
    )
    return bands / bands.sum(1, keepdim=True)


def compute_mel_power(wave: Tensor) -> Tensor:
    """[…, samples] → […, samples / HOP, 64]; the window of spectrum k ends with sample (k+1)·HOP. White noise of full scale gives about
    1."""
    window = torch.hann_window(WINDOW)
    framed = torch.nn.functional.pad(wave, (WINDOW - HOP, 0)).unfold(-1, WINDOW, HOP) * window
    return torch.fft.rfft(framed, n=FFT).abs().square() / window.square().sum() @ make_mel_filters().T


def estimate_pitch(samples: Samples) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(log Hz, voicing) at 50 Hz: the smoothest path through the peaks of the normalized autocorrelation, found by Viterbi."""
    slow = decimate(samples, MASTER_RATE // PITCH_RATE, ftype="fir")
    framed = np.lib.stride_tricks.sliding_window_view(np.pad(slow, (PITCH_WINDOW - PITCH_HOP, 0)), PITCH_WINDOW)[::PITCH_HOP]
    framed = framed - framed.mean(axis=1, keepdims=True)
    correlation = _compute_autocorrelation(framed)
    shortest, longest = (PITCH_RATE // hz for hz in reversed(PITCH_HZ))
    lag = shortest + _find_smoothest_path(correlation[:, shortest:longest], np.log(np.arange(shortest, longest)))
    frame = np.arange(len(lag))
    before, at, after = (correlation[frame, lag + step] for step in (-1, 0, 1))
    peak = np.clip(0.5 * (before - after) / (before - 2 * at + after - 1e-9), -0.5, 0.5)  # peak of a parabola through the three values
    audible = np.square(framed).mean(axis=1) > FLOOR
    voicing = np.clip(at, 0, 1) * audible
    return _interpolate_unvoiced(np.log(PITCH_RATE / (lag + peak)), voicing > 0.5), voicing


def _compute_autocorrelation(framed: NDArray[np.float64]) -> NDArray[np.float64]:
    """[frames, lags up to half a window], normalized by the energy of the two compared stretches: 1 is a perfect repetition."""
    size, lags = framed.shape[1], np.arange(framed.shape[1] // 2)
    spectrum = np.fft.rfft(framed, 1024)
    products = np.fft.irfft(np.square(np.abs(spectrum)), 1024)[:, : len(lags)]
    energy = np.pad(np.cumsum(np.square(framed), axis=1), ((0, 0), (1, 0)))
    early, late = energy[:, size - lags], energy[:, -1:] - energy[:, lags]
    return products / np.sqrt(np.maximum(early * late, 1e-6))


def _find_smoothest_path(scores: NDArray[np.float64], log_lags: NDArray[np.float64]) -> NDArray[np.int64]:
    """[frames]: the lags of the best path. A jump costs in proportion to its size in octaves, up to a limit, because voices do jump."""
    scores = scores - 0.0008 * np.arange(scores.shape[1])  # prefers the higher of two octaves that fit equally
    jumps = np.maximum(-1.5 * np.abs(log_lags[:, None] - log_lags), -0.6)
    best, came = scores[0], np.zeros(scores.shape, dtype=np.int64)
    for frame in range(1, len(scores)):
        reached = best[:, None] + jumps
        came[frame] = reached.argmax(axis=0)
        best = reached.max(axis=0) + scores[frame]
    path = [int(best.argmax())]
    for frame in range(len(scores) - 1, 0, -1):
        path.append(int(came[frame, path[-1]]))
    return np.array(path[::-1])


def _interpolate_unvoiced(log_hz: NDArray[np.float64], voiced: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Linear interpolation of the pitch through unvoiced frames."""
    if not voiced.any():
        return np.full(len(log_hz), USUAL_LOG_HZ)
    return np.interp(np.arange(len(log_hz)), np.flatnonzero(voiced), log_hz[voiced])
