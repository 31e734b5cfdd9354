"""SpecAugment (Park et al. 2019, arXiv:1904.08779): hides stretches of time and bands of frequencies of a training clip."""

from __future__ import annotations

import torch
from torch import Generator

from overtone.finetune.recipe import Sample

from .sequence_layout import RecognizerProcessor


def mask_sample(sample: Sample, processor: RecognizerProcessor, generator: Generator) -> Sample:
    """The sample with random rectangles of its `features` [mels, frames] replaced by their mean. The last frame, which stands for all of
    the silence after the clip, is never hidden by a stretch of time."""
    options = processor.options
    if not (options.time_masks or options.mel_masks):
        return sample
    features = sample["features"].clone()
    mean = features.mean()
    bands, frames = features.shape[0], features.shape[1] - 1
    longest = int(options.time_mask_share * frames)
    for length, place in torch.rand(options.time_masks, 2, generator=generator).tolist():
        size = int(length * (longest + 1))
        first = int(place * (frames - size + 1))
        features[:, first : first + size] = mean
    widest = min(options.mel_mask_bands, bands)
    for length, place in torch.rand(options.mel_masks, 2, generator=generator).tolist():
        size = int(length * (widest + 1))
        first = int(place * (bands - size + 1))
        features[first : first + size] = mean
    return {**sample, "features": features}
