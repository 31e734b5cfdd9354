"""Training of the decoder in two parts: first from codes to spectra and pitch at 100 Hz, which is cheap, then from codes to audio.

The audio is 20 ms late. The window of a frame's last spectrum fades out at the end of the frame, so the codes say little about that sound;
the next codes do, and a causal decoder has to wait for them.

The second part starts from the weights of the first. Without the first part, it needs ten times as many steps for the same loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from overtone.data_prep.audio.librosa_import import import_librosa
from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.audio_codecs.qwen3_tts_codec import SAMPLES_PER_FRAME
from workshop.demo_models.resumable_training import Schedule, train_parameters

from .codebooks import WIDTH, Codebooks
from .codec_model import decode_frames, generate_wave, upsample_frames
from .frame_features import (
    BANDS,
    FLOOR,
    HOP,
    LOWEST_HZ,
    PITCHES,
    SPECTRA,
    USUAL_LOG_HZ,
    WINDOW,
    FrameFeatures,
    compute_mel_power,
    slice_spectra,
)
from .training_clips import CodecClip, slice_features

FRONT_CLIPS, FRONT_FRAMES = 10, 20
"""Excerpts per batch, and frames per excerpt, in the first part."""
WAVE_CLIPS, WAVE_FRAMES = 6, 9
"""The same in the second part. The loss on audio skips the first frame, which depends on earlier frames."""
MEL_MEAN, MEL_SPREAD = -7.0, 3.0
"""Approximate mean and spread of the spectra in nepers of power; they scale the targets to unit size."""
RESOLUTIONS = ((2048, 480, 1600, 80), (1024, 240, 800, 64), (512, 120, 400, 40), (256, 60, 160, 20))
"""(transform, hop, window, mel bands): an error that is blurred at one resolution is visible at another."""
COMPARED_HZ, EMPTY_HZ = 8500, 9000
"""The audio is compared up to the first frequency, and should be silent above the second: most of the voices end at 8 kHz."""
LOSS_FLOOR = 1e-5
DELAY = 2 * HOP
"""Samples by which the decoder's audio is late."""
HELD_SPECTRA_WEIGHT = 4.0
"""Weight of the distance to the spectra that the codes hold. They are a function of the codes, and those of the recording are not."""


@dataclass(frozen=True)
class EncodedClip:
    """A clip at some level, with its codes."""

    clip: CodecClip
    gain: float
    codes: Tensor
    """[T, 16] int64."""

    def cut(self, first: int, last: int) -> EncodedExcerpt:
        """Frames [first, last), with the audio that a decoder should generate for them."""
        return EncodedExcerpt(
            wave=torch.from_numpy(self.clip.cut(first, last, DELAY)) * self.gain,
            features=slice_features(self.clip.features, first, last),
            gain=self.gain,
            codes=self.codes[first:last],
        )


@dataclass(frozen=True)
class EncodedExcerpt:
    """Some frames of a clip."""

    wave: Tensor
    """DELAY late, and at the level `gain`; the features are at the clip's original level."""
    features: FrameFeatures
    gain: float
    codes: Tensor


def draw_excerpts(coded: Sequence[EncodedClip], count: int, frames: int, random: np.random.Generator) -> list[EncodedExcerpt]:
    """Random excerpts of `frames` frames from clips that are long enough."""
    excerpts: list[EncodedExcerpt] = []
    while len(excerpts) < count:
        one = coded[int(random.integers(len(coded)))]
        if one.clip.frames >= frames:
            first = int(random.integers(one.clip.frames - frames + 1))
            excerpts.append(one.cut(first, first + frames))
    return excerpts


def initialize_decoder(model: Any, coordinates_spread: Tensor, seed: int) -> None:
    """Initial values from which training works well: codes arrive at unit size, layer scales and Snake parameters vary and are not zero,
    and the output is quiet.

    `coordinates_spread` [WIDTH] is the standard deviation of the features' coordinates.
    """
    decoder = model.decoder
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for side in (decoder.quantizer.rvq_first, decoder.quantizer.rvq_rest):
            weights = torch.randn(side.output_proj.weight.shape[:2], generator=random) / WIDTH**0.5
            side.output_proj.weight.copy_((weights / (coordinates_spread + 1.5))[:, :, None])
        for name, parameter in decoder.named_parameters():
            if name.endswith(".gamma"):
                parameter.fill_(0.1)
            if name.endswith((".alpha", ".beta")):
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=random))
        decoder.decoder[-1].conv.weight.mul_(0.3)


def train_front(model: Any, coded: Sequence[EncodedClip], place: Path, seed: int, steps: int, until: int | None = None) -> float | None:
    """Train the front of the decoder: codes → log-mel, log pitch and voicing in its first 66 channels at 100 Hz."""
    decoder = model.decoder
    trained = {name: parameter for name, parameter in select_parameters(model).items() if not name.startswith("decoder.")}

    def loss(step: int) -> Tensor:
        cuts = draw_excerpts(coded, FRONT_CLIPS, FRONT_FRAMES, np.random.default_rng([seed, step]))
        found = upsample_frames(decoder, decode_frames(decoder, torch.stack([cut.codes for cut in cuts])))
        return compute_front_loss(found, torch.stack([make_front_target(cut.features, cut.gain) for cut in cuts]))

    return train_parameters(place, Schedule(steps, rate=3e-3, plateau=0.3), trained, loss, until)


def make_front_target(features: FrameFeatures, gain: float) -> Tensor:
    """[8·T, 66]."""
    tracks = [(features.log_hz - USUAL_LOG_HZ) * 4, features.voicing]
    spectra = (features.log_mel(gain) - MEL_MEAN) / MEL_SPREAD
    return torch.cat([spectra, *(track.reshape(-1, 1).repeat_interleave(SPECTRA // PITCHES, 0) for track in tracks)], dim=1)


def compute_front_loss(found: Tensor, targets: Tensor) -> Tensor:
    """Output [B, channels, 8·T] against targets [B, 8·T, 66]. Targets are one step late: their window ends where the sound of a spectrum
    begins to fade."""
    found, targets = found[:, : BANDS + 2, :-1].transpose(1, 2), targets[:, 1:]
    errors, voicing = (found - targets).square(), targets[..., -1:].clamp(0, 1)
    return errors[..., :BANDS].mean() + 2 * (errors[..., BANDS : BANDS + 1] * voicing).mean() + 0.3 * errors[..., BANDS + 1].mean()


def train_wave(
    model: Any,
    books: Codebooks,
    coded: Sequence[EncodedClip],
    place: Path,
    seed: int,
    steps: int,
    until: int | None = None,
    compiled: bool = True,
) -> float | None:
    """Train the whole decoder except its codebooks: codes → audio. With `compiled`, steps are 1.7 times faster after a minute; needs a C++
    compiler."""
    decoder = model.decoder

    def tail(inside: Tensor) -> Tensor:
        return generate_wave(decoder, upsample_frames(decoder, inside))

    sound: Callable[[Tensor], Tensor] = torch.compile(tail, dynamic=False) if compiled else tail

    def loss(step: int) -> Tensor:
        cuts = draw_excerpts(coded, WAVE_CLIPS, WAVE_FRAMES, np.random.default_rng([seed, step]))
        codes = torch.stack([cut.codes for cut in cuts])
        found, wanted = sound(decode_frames(decoder, codes)), torch.stack([cut.wave for cut in cuts])
        held = slice_spectra(books.restore(books.decode(codes)))
        return compute_wave_loss(found[:, SAMPLES_PER_FRAME:], wanted[:, SAMPLES_PER_FRAME:]) + HELD_SPECTRA_WEIGHT * compare_spectra(
            found, held
        )

    return train_parameters(
        place, Schedule(steps, rate=2e-3, plateau=0.4, warmup=100, clip=2.0, betas=(0.8, 0.98)), select_parameters(model), loss, until
    )


def select_parameters(model: Any) -> dict[str, Tensor]:
    """The trained parameters: all except the codebooks and the projections before them, which a decoder never uses."""
    return {
        name: parameter
        for name, parameter in model.decoder.named_parameters()
        if "_codebook" not in name and not (name.startswith("quantizer.") and ".input_proj" in name)
    }


def compute_wave_loss(found: Tensor, wanted: Tensor) -> Tensor:
    """[B, samples] each: log magnitudes, log-mel and spectral convergence at every resolution, and a penalty for sound above the voices."""
    total = torch.zeros(())
    for index, (size, *_, bands) in enumerate(RESOLUTIONS):
        bins = size * COMPARED_HZ // MASTER_RATE
        one, other = _power(found, index), _power(wanted, index)
        total = total + 0.25 * _log_distance(one[:, :bins], other[:, :bins])
        total = total + 0.5 * _log_distance(_mel(size, bands) @ one, _mel(size, bands) @ other)
        total = total + _convergence(one[:, :bins], other[:, :bins])
    size = RESOLUTIONS[1][0]
    empty = _power(found, 1)[:, size * EMPTY_HZ // MASTER_RATE :]
    return total / len(RESOLUTIONS) + 0.05 * torch.log1p(empty / LOSS_FLOOR).mean()


def compare_spectra(found: Tensor, held: Tensor) -> Tensor:
    """Mean distance in nepers between the spectra of audio [B, samples] that is DELAY late, and spectra [B, 8·T, 64]; without the first
    frame, which depends on earlier ones."""
    late, first = DELAY // HOP, SPECTRA + WINDOW // HOP  # the windows before it reach into the first frame
    spectra = (compute_mel_power(found) + FLOOR).log()
    return (spectra[:, first:] - held[:, first - late : -late].clamp(min=math.log(FLOOR))).abs().mean()


def _log_distance(one: Tensor, other: Tensor) -> Tensor:
    return ((one + LOSS_FLOOR).log() - (other + LOSS_FLOOR).log()).abs().mean()


def _convergence(one: Tensor, other: Tensor) -> Tensor:
    """Norm of the error divided by the norm of the sound, per clip; 0.5 avoids a division by zero for silence."""
    one, other = (one + 1e-8).sqrt(), (other + 1e-8).sqrt()
    return ((one - other).square().sum((1, 2)).sqrt() / (other.square().sum((1, 2)).sqrt() + 0.5)).mean()


def _power(wave: Tensor, index: int) -> Tensor:
    """Power spectra [B, bins, times]."""
    size, hop, window, _ = RESOLUTIONS[index]
    shape = torch.hann_window(window)
    return torch.stft(wave, size, hop, window, shape, center=False, return_complex=True).abs().square() / shape.square().sum()


@cache
def _mel(size: int, bands: int) -> Tensor:
    weights = torch.from_numpy(
        import_librosa().filters.mel(sr=MASTER_RATE, n_fft=size, n_mels=bands, fmin=LOWEST_HZ, fmax=COMPARED_HZ, norm=None)
    )
    return weights / weights.sum(1, keepdim=True).clamp(min=1e-6)
