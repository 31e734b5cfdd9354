"""Options of image_classification. Must not import torch: config checks and `--help` read this module."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from overtone.finetune.config import Section


class Options(Section):
    """Options that only this recipe has."""

    head: Literal["fresh", "base"] = "fresh"
    """Start with a new output layer for the labels of the data, initialized by `run.seed`, or with that of the base, whose labels must
    then include those of the data."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of each target that is spread evenly over all labels (Szegedy et al. 2016, arXiv:1512.00567). Evaluations do not
    use it."""
    crop_area: float = Field(default=0.35, gt=0, le=1)
    """Smallest area of a random crop, as a share of the image; crops have aspect ratios from 3:4 to 4:3. 1: train on the whole image, as
    the image processor prepares it for inference."""
    flip: bool = True
    """Mirror half of the images, left to right. Turn it off if a mirror image has another label, as for digits or letters."""
    jitter: float = Field(default=0.0, ge=0, lt=1)
    """Change brightness and contrast of each image by random factors from 1 - jitter to 1 + jitter."""
