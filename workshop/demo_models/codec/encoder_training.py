"""Training of the encoder: regression from audio to the coordinates that the codebooks were made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from overtone.data_prep.audio_codecs.qwen3_tts_codec import SAMPLES_PER_FRAME
from workshop.demo_models.resumable_training import Schedule, train_parameters

from .codebooks import Codebooks
from .codec_model import encode_latent
from .training_clips import CodecClip, draw_gain, slice_features

CLIPS, FRAMES = 8, 13
"""Excerpts per batch, and frames per excerpt."""
HISS = (-90.0, -58.0)
"""Level in dB of full scale of noise that is added to the audio but not to the target, from inaudible to faint."""


def select_parameters(model: Any) -> dict[str, Tensor]:
    """The trained parameters: all except the quantizer, of which only the acoustic input projection."""
    projection = "quantizer.acoustic_residual_vector_quantizer.input_proj.weight"
    parameters = model.encoder.named_parameters()
    return {name: parameter for name, parameter in parameters if not name.startswith("quantizer.") or name == projection}


def train_encoder(
    model: Any, clips: Sequence[CodecClip], books: Codebooks, place: Path, seed: int, steps: int, until: int | None = None
) -> float | None:
    """Train the encoder and the acoustic input projection. Returns the last mean loss: squared error relative to the variance of the
    targets."""
    encoder = model.encoder
    spread = float(sum(books.project(clip.features.vectors(1.0)).square().sum() for clip in clips)) / sum(clip.frames for clip in clips)

    def loss(step: int) -> Tensor:
        waves, targets, counted = make_batch(clips, books, np.random.default_rng([seed, step]))
        found = encode_latent(encoder, waves).transpose(1, 2)
        return (found - targets)[counted].square().sum(1).mean() / spread

    return train_parameters(place, Schedule(steps, rate=2e-3, plateau=0.3), select_parameters(model), loss, until)


def make_batch(clips: Sequence[CodecClip], books: Codebooks, random: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Waves [B, samples], coordinates [B, FRAMES, WIDTH] and counted frames [B, FRAMES] of random excerpts at random levels."""
    waves = torch.zeros(CLIPS, FRAMES * SAMPLES_PER_FRAME)
    targets = torch.zeros(CLIPS, FRAMES, len(books.axes))
    counted = torch.zeros(CLIPS, FRAMES, dtype=torch.bool)
    for row in range(CLIPS):
        clip, gain = clips[int(random.integers(len(clips)))], draw_gain(random)
        start = int(random.integers(-1, max(1, clip.frames - FRAMES + 2)))  # -1: start with a frame of silence
        first, last = max(0, start), min(clip.frames, start + FRAMES)
        here = slice(first - start, last - start)
        waves[row, here.start * SAMPLES_PER_FRAME : here.stop * SAMPLES_PER_FRAME] = torch.from_numpy(clip.cut(first, last)) * gain
        targets[row, here] = books.project(slice_features(clip.features, first, last).vectors(gain))
        counted[row, here] = True
        if start > 0:
            counted[row, 0] = False  # it depends on sound before the excerpt
    hiss = 10 ** (random.uniform(*HISS, (CLIPS, 1)) / 20) * random.standard_normal(waves.shape)
    return waves + torch.from_numpy(hiss).float(), targets, counted


def measure_error(model: Any, clips: Sequence[CodecClip], books: Codebooks) -> dict[str, float]:
    """Relative squared error on whole clips at their own level, before and after the codebooks."""
    with torch.inference_mode():
        found = torch.cat([encode_latent(model.encoder, torch.from_numpy(clip.wave)[None])[0].T for clip in clips])
    wanted = torch.cat([books.project(clip.features.vectors(1.0)) for clip in clips])
    coded = books.decode(books.encode(found))
    energy = wanted.square().mean()
    return {
        "encoder": float((found - wanted).square().mean() / energy),
        "books": float((books.decode(books.encode(wanted)) - wanted).square().mean() / energy),
        "both": float((coded - wanted).square().mean() / energy),
    }
