"""What a frame of 80 ms sounds like, as numbers that can be learned and clustered: 8 log-mel spectra, pitch and voicing at 50 Hz.

Every window ends inside its frame, because the codec's encoder is causal too: it could not know what comes later.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data_prep.audio.librosa_import import import_librosa
from data_prep.audio.waveform import MASTER_RATE, Samples
from data_prep.audio_codecs.qwen3_tts import SAMPLES_PER_FRAME

if TYPE_CHECKING:
    from torch import Tensor

HOP, WINDOW, FFT, BANDS = 240, 800, 1024, 64
SPECTRA = SAMPLES_PER_FRAME // HOP
"""Per frame."""
LOWEST_HZ, HIGHEST_HZ = 40, 8000
"""Most of the synthesisers' voices end at 8 kHz."""
FLOOR = 1e-5
"""Added to the power before the logarithm, full scale 1.0: below -50 dB all silence is alike."""
PITCH_RATE, PITCH_WINDOW, PITCH_HOP = 8000, 400, 160
PITCH_HZ = (70, 300)
PITCHES = SAMPLES_PER_FRAME * PITCH_RATE // MASTER_RATE // PITCH_HOP
"""Per frame."""
USUAL_LOG_HZ = 4.9
PITCH_WEIGHT, VOICING_WEIGHT = 12.0, 3.0
"""Against the spectra: without them clusters would not care about pitch, and voices would sound alike."""
LENGTH = SPECTRA * BANDS + 2 * PITCHES


@dataclass(frozen=True)
class Heard:
    """One clip of T frames at its own level."""

    power: Tensor
    """[8·T, 64] mel power."""
    log_hz: Tensor
    """[T, 4] natural logarithm of the pitch; through unvoiced stretches a line between their ends."""
    voicing: Tensor
    """[T, 4] 0 … 1."""

    def log_mel(self, gain: float) -> Tensor:
        """[8·T, 64] at another level; `gain` multiplies the samples."""
        return (self.power * gain**2 + FLOOR).log()

    def vectors(self, gain: float) -> Tensor:
        """[T, LENGTH]: everything about each frame, weighted."""
        import torch

        spectra = self.log_mel(gain).reshape(len(self.log_hz), SPECTRA * BANDS)
        return torch.cat([spectra, (self.log_hz - USUAL_LOG_HZ) * PITCH_WEIGHT, self.voicing * VOICING_WEIGHT], dim=1)


def whole_frames(samples: Samples) -> Samples:
    """Zeros at the end up to a whole frame: the last one would otherwise depend on how a batch is padded."""
    return np.pad(samples, (0, -len(samples) % SAMPLES_PER_FRAME))


def listen(samples: Samples) -> Heard:
    """Of whole frames at 24 kHz."""
    import torch

    log_hz, voicing = pitch(samples)
    return Heard(mel_power(torch.from_numpy(samples)), *(torch.from_numpy(track).float().view(-1, PITCHES) for track in (log_hz, voicing)))


@cache
def mel_bands() -> Tensor:
    """[64, 513], each band's weights adding up to 1."""
    import torch

    bands = torch.from_numpy(
        import_librosa().filters.mel(sr=MASTER_RATE, n_fft=FFT, n_mels=BANDS, fmin=LOWEST_HZ, fmax=HIGHEST_HZ, norm=None)
    )
    return bands / bands.sum(1, keepdim=True)


def mel_power(wave: Tensor) -> Tensor:
    """[samples] → [samples / HOP, 64]; the window of spectrum k ends with sample (k+1)·HOP. Of full-scale noise it is about 1."""
    import torch

    window = torch.hann_window(WINDOW)
    framed = torch.nn.functional.pad(wave, (WINDOW - HOP, 0)).unfold(0, WINDOW, HOP) * window
    return torch.fft.rfft(framed, n=FFT).abs().square() / window.square().sum() @ mel_bands().T


def pitch(samples: Samples) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(log Hz, voicing) at 50 Hz: the smoothest path through the peaks of the normalised autocorrelation, found by Viterbi."""
    from scipy.signal import decimate

    slow = decimate(samples, MASTER_RATE // PITCH_RATE, ftype="fir")
    framed = np.lib.stride_tricks.sliding_window_view(np.pad(slow, (PITCH_WINDOW - PITCH_HOP, 0)), PITCH_WINDOW)[::PITCH_HOP]
    framed = framed - framed.mean(axis=1, keepdims=True)
    correlation = _autocorrelation(framed)
    shortest, longest = (PITCH_RATE // hz for hz in reversed(PITCH_HZ))
    lag = shortest + _smoothest(correlation[:, shortest:longest], np.log(np.arange(shortest, longest)))
    frame = np.arange(len(lag))
    before, at, after = (correlation[frame, lag + step] for step in (-1, 0, 1))
    peak = np.clip(0.5 * (before - after) / (before - 2 * at + after - 1e-9), -0.5, 0.5)  # of a parabola through the three
    audible = np.square(framed).mean(axis=1) > FLOOR
    voicing = np.clip(at, 0, 1) * audible
    return _bridged(np.log(PITCH_RATE / (lag + peak)), voicing > 0.5), voicing


def _autocorrelation(framed: NDArray[np.float64]) -> NDArray[np.float64]:
    """[frames, lags up to half a window], each normalised by the energy of the two stretches that it compares: 1 is a perfect repeat."""
    size, lags = framed.shape[1], np.arange(framed.shape[1] // 2)
    spectrum = np.fft.rfft(framed, 1024)
    products = np.fft.irfft(np.square(np.abs(spectrum)), 1024)[:, : len(lags)]
    energy = np.pad(np.cumsum(np.square(framed), axis=1), ((0, 0), (1, 0)))
    early, late = energy[:, size - lags], energy[:, -1:] - energy[:, lags]
    return products / np.sqrt(np.maximum(early * late, 1e-6))


def _smoothest(scores: NDArray[np.float64], log_lags: NDArray[np.float64]) -> NDArray[np.int64]:
    """[frames]: the lags of the best path. A jump costs in proportion to its size in octaves, up to a limit, since voices do jump."""
    scores = scores - 0.0008 * np.arange(scores.shape[1])  # of two octaves that fit equally, the higher
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


def _bridged(log_hz: NDArray[np.float64], voiced: NDArray[np.bool_]) -> NDArray[np.float64]:
    if not voiced.any():
        return np.full(len(log_hz), USUAL_LOG_HZ)
    return np.interp(np.arange(len(log_hz)), np.flatnonzero(voiced), log_hz[voiced])
