"""Mel spectrograms of audio as PNG images."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.image import imsave

from overtone.data_prep.audio.librosa_import import import_librosa
from overtone.data_prep.audio.waveform import Samples

RATE = 24_000
FFT, HOP, COLUMNS, BANDS = 1024, 256, 480, 80
LEVELS, DYNAMIC_DB = 24, 70.0
"""Shades of a spectrogram, few to keep the PNG small, and its dynamic range in dB."""
INK = LinearSegmentedColormap.from_list("ink", ["#f3f1ea", "#b9cfc8", "#4f8f88", "#17474a", "#06191d"], LEVELS)


def draw_spectrogram(samples: Samples) -> bytes:
    """Return the PNG of the mel spectrogram of samples at 24 kHz: 80 bands up to 12 kHz, low ones below; at most about 480 columns."""
    librosa = import_librosa()
    hop = max(HOP, -(-len(samples) // COLUMNS))
    power = librosa.feature.melspectrogram(y=samples, sr=RATE, n_fft=FFT, hop_length=hop, n_mels=BANDS)
    levels = librosa.power_to_db(power, ref=np.max, top_db=DYNAMIC_DB) / DYNAMIC_DB + 1.0
    buffer = io.BytesIO()
    imsave(buffer, levels, cmap=INK, vmin=0.0, vmax=1.0, origin="lower", format="png")
    return buffer.getvalue()
