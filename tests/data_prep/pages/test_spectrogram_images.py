"""A spectrogram shows the audio of its clip, at most so many pixels wide."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.image import imread

from overtone.data_prep.audio.librosa_import import import_librosa
from overtone.data_prep.pages.spectrogram_images import BANDS, COLUMNS, draw_spectrogram

RATE = 24_000


def tone(hertz: float, seconds: float) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


def test_a_spectrogram_shows_a_tone_at_its_frequency_and_time() -> None:
    quiet = 1e-4 * np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    picture = imread(io.BytesIO(draw_spectrogram(np.concatenate([tone(1000, 1.0), quiet]))), format="png")
    assert picture.shape[0] == BANDS
    dark = 1 - picture[:, :, :3].mean(axis=2)
    half = picture.shape[1] // 2
    row = int(dark[:, : half - 5].mean(axis=1).argmax())
    assert import_librosa().mel_frequencies(n_mels=BANDS + 2, fmax=RATE / 2)[BANDS - row] == pytest.approx(1000, rel=0.05)
    assert dark[:, half + 5 :].mean() < 0.1 < dark[row, : half - 5].mean()


def test_spectrograms_of_long_short_and_silent_clips_are_valid() -> None:
    assert imread(io.BytesIO(draw_spectrogram(tone(300, 20.0))), format="png").shape[1] <= COLUMNS + 2
    assert imread(io.BytesIO(draw_spectrogram(np.zeros(3000, np.float32))), format="png").shape[0] == BANDS
