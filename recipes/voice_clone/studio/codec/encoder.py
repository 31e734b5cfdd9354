"""The encoder is taught coordinates: plain regression from sound to what the codebooks were made on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep.audio_codecs.qwen3_tts import SAMPLES_PER_FRAME

from ..resumable_training import Schedule, learn
from .codebooks import Books
from .codec_model import encode_latent
from .training_clips import Clip, gain_of, taken

if TYPE_CHECKING:
    from torch import Tensor

CLIPS, FRAMES = 8, 13
"""Of a batch."""
HISS = (-90.0, -58.0)
"""dB of full scale, the room's noise that is added to the sound but not to the target; from inaudible to faint."""


def taught(model: Any) -> dict[str, Tensor]:
    """What training changes: all but the quantiser, of which the acoustic input projection."""
    projection = "quantizer.acoustic_residual_vector_quantizer.input_proj.weight"
    parameters = model.encoder.named_parameters()
    return {name: parameter for name, parameter in parameters if not name.startswith("quantizer.") or name == projection}


def teach(model: Any, clips: Sequence[Clip], books: Books, place: Path, seed: int, steps: int, until: int | None = None) -> float | None:
    """Train the encoder and the acoustic input projection. Returns the last mean loss: squared error over the targets' variance."""
    encoder = model.encoder
    spread = float(sum(books.coordinates(clip.heard.vectors(1.0)).square().sum() for clip in clips)) / sum(clip.frames for clip in clips)

    def loss(step: int) -> Tensor:
        waves, targets, counted = batch(clips, books, np.random.default_rng([seed, step]))
        found = encode_latent(encoder, waves).transpose(1, 2)
        return (found - targets)[counted].square().sum(1).mean() / spread

    return learn(place, Schedule(steps, rate=2e-3, plateau=0.3), taught(model), loss, until)


def batch(clips: Sequence[Clip], books: Books, random: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(waves [B, samples], coordinates [B, FRAMES, WIDTH], which frames count [B, FRAMES]) of random cuts at random levels."""
    import torch

    waves = torch.zeros(CLIPS, FRAMES * SAMPLES_PER_FRAME)
    targets = torch.zeros(CLIPS, FRAMES, len(books.axes))
    counted = torch.zeros(CLIPS, FRAMES, dtype=torch.bool)
    for row in range(CLIPS):
        clip, gain = clips[int(random.integers(len(clips)))], gain_of(random)
        start = int(random.integers(-1, max(1, clip.frames - FRAMES + 2)))  # -1: a frame of silence comes first
        first, last = max(0, start), min(clip.frames, start + FRAMES)
        here = slice(first - start, last - start)
        waves[row, here.start * SAMPLES_PER_FRAME : here.stop * SAMPLES_PER_FRAME] = torch.from_numpy(clip.cut(first, last)) * gain
        targets[row, here] = books.coordinates(taken(clip.heard, first, last).vectors(gain))
        counted[row, here] = True
        if start > 0:
            counted[row, 0] = False  # it depends on sound before the cut
    hiss = 10 ** (random.uniform(*HISS, (CLIPS, 1)) / 20) * random.standard_normal(waves.shape)
    return waves + torch.from_numpy(hiss).float(), targets, counted


def error(model: Any, clips: Sequence[Clip], books: Books) -> dict[str, float]:
    """On whole clips at their own level: the relative squared error before and after the codebooks."""
    import torch

    with torch.inference_mode():
        found = torch.cat([encode_latent(model.encoder, torch.from_numpy(clip.wave)[None])[0].T for clip in clips])
    wanted = torch.cat([books.coordinates(clip.heard.vectors(1.0)) for clip in clips])
    coded = books.decoded(books.codes(found))
    energy = wanted.square().mean()
    return {
        "encoder": float((found - wanted).square().mean() / energy),
        "books": float((books.decoded(books.codes(wanted)) - wanted).square().mean() / energy),
        "both": float((coded - wanted).square().mean() / energy),
    }
