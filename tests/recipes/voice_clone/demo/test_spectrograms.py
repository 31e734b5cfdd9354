"""The image shows the same sentence four times: recording, through the codec, before, after."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from matplotlib.image import imread

from overtone.data_prep.audio.waveform import Audio, encode_flac
from overtone.recipes.voice_clone.demo import spectrograms
from overtone.recipes.voice_clone.demo.comparison_clips import SPOKEN, ComparisonClip


def make_clips(folder: Path, level: float) -> dict[str, list[ComparisonClip]]:
    """Two sentences by each; the second is longer, and by the first system."""
    found = {}
    for at, title in enumerate(SPOKEN):
        path = folder / f"{title}.flac"
        path.parent.mkdir(exist_ok=True)
        wave = np.random.default_rng(0).normal(0, level, round(24_000 * (1 - at / 6))).astype(np.float32)
        path.write_bytes(encode_flac(Audio(wave, 24_000)))
        texts = ("Short.", "The longer sentence of the two is too long for one line of the image, and is wrapped " + "x" * 40)
        found[title] = [ComparisonClip(text, text if at else "", path, path) for text in texts]
    return found


def test_the_image_has_four_spectrograms_of_the_longest_sentence_on_one_time_axis(tmp_path: Path) -> None:
    drawn = [spectrograms.draw_spectrograms(make_clips(tmp_path / str(level), level), "a judge") for level in (0.1, 0.0)]
    image, silence = (imread(io.BytesIO(picture)) for picture in drawn)
    assert image.shape[0] > 500 and image.shape[1] > 800 and silence.shape == image.shape
    rows, columns = np.nonzero(np.abs(image - silence).sum(-1) > 0.1)
    assert len(np.unique(rows)) > 200, "four spectrograms"
    widths = [np.ptp(columns[rows == row]) for row in (rows.min() + 20, rows.max() - 20)]
    assert widths[1] < 0.7 * widths[0], "one time axis: the last clip is half as long"
