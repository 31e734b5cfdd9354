"""Mel spectrograms of one sentence: the recording, the same through the codec, the base before training, and the trained model."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.image import imread

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.pages.spectrogram_images import draw_spectrogram
from overtone.recipes.speech.evaluation.scoring import read_clip

from .comparison_clips import ComparisonClip

LINE = 100
"""Characters that fit into the width of the image."""


def draw_spectrograms(clips_of_systems: Mapping[str, Sequence[ComparisonClip]], judge: str) -> bytes:
    """PNG with one row per system: the spectrogram of its longest sentence under its transcript, on a common time axis. `judge`: the
    recognizer of the transcripts."""
    chosen = {title: max(clips, key=lambda clip: len(clip.text)) for title, clips in clips_of_systems.items()}
    figure = Figure(figsize=(8, 1.7 * len(chosen)), layout="constrained")
    rows = figure.subplots(len(chosen), 1, sharex=True)
    longest = 0.0
    for axes, (title, clip) in zip(rows, chosen.items(), strict=True):
        samples = read_clip(clip.path)
        seconds = len(samples) / MASTER_RATE
        longest = max(longest, seconds)
        axes.imshow(imread(io.BytesIO(draw_spectrogram(samples))), aspect="auto", extent=(0, seconds, 0, 1))
        axes.set_title(textwrap.fill(f"{title}: {clip.heard!r}", LINE), fontsize=8, loc="left")
        axes.set_yticks([])
    rows[0].set_xlim(0, longest)  # each imshow sets the limit to the length of its own image
    text = next(iter(chosen.values())).text
    rows[-1].set_xlabel(textwrap.fill(f"seconds of {text!r}; after the colons: the transcript of {judge}", LINE), fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=110, format="png")
    return buffer.getvalue()
