"""SpecAugment: what is hidden, how much of it, and that the generator alone decides."""

from __future__ import annotations

from dataclasses import replace

import torch

from overtone.recipes.whisper.model.sequence_layout import compute_features
from overtone.recipes.whisper.model.spectrogram_masks import mask_sample
from overtone.recipes.whisper.options import Options
from tests.recipes.whisper.tiny_whisper import PROCESSOR, make_tone

SAMPLE = {"features": compute_features(make_tone(2, 4.0), 80), "ids": torch.arange(5)}


def mask(seed: int, **options: float) -> torch.Tensor:
    """Which values [mels, frames] are hidden."""
    before = SAMPLE["features"].clone()
    processor = replace(PROCESSOR, options=Options(**options))  # type: ignore[arg-type]
    masked = mask_sample(SAMPLE, processor, torch.Generator().manual_seed(seed))
    assert torch.equal(SAMPLE["features"], before), "the cached sample stays"
    assert masked["ids"] is SAMPLE["ids"] and masked["features"].shape == before.shape
    hidden = masked["features"] != before
    assert not hidden.any() or masked["features"][hidden].unique().tolist() == [before.mean()]
    return hidden


def test_stretches_of_time_and_bands_are_hidden_up_to_their_sizes() -> None:
    frames = SAMPLE["features"].shape[1]
    widths = set()
    for seed in range(40):
        columns = mask(seed, time_masks=1, time_mask_share=0.1).all(0)
        assert columns.sum() <= 0.1 * frames
        widths.add(int(columns.sum()))
        assert mask(seed, mel_masks=1, mel_mask_bands=7).all(1).sum() <= 7
    assert len(widths) > 10
    assert mask(0, time_masks=3).all(0).any() and mask(0, mel_masks=3).all(1).any() and not mask(0).any()


def test_the_silence_after_the_clip_is_never_hidden() -> None:
    columns = [mask(seed, time_masks=4, time_mask_share=1).all(0) for seed in range(300)]
    assert any(column[-2] for column in columns) and not any(column[-1] for column in columns)


def test_the_generator_decides() -> None:
    settings = {"time_masks": 2, "mel_masks": 2}
    assert torch.equal(mask(3, **settings), mask(3, **settings)) and not torch.equal(mask(3, **settings), mask(4, **settings))
