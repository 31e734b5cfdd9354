"""The decoder is taught in two parts: from codes to spectra and pitch at 100 Hz, which is cheap, then from codes to sound.

The second starts where the first ends. Without the first it takes ten times as many steps to the same loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep.audio.librosa_import import import_librosa
from data_prep.audio.waveform import MASTER_RATE
from data_prep.audio_codecs.qwen3_tts import SAMPLES_PER_FRAME

from ..resumable_training import Schedule, learn
from .codebooks import WIDTH
from .codec_model import decode_frames, make_wave, raise_rate
from .features import BANDS, LOWEST_HZ, PITCHES, SPECTRA, USUAL_LOG_HZ, Heard
from .training_clips import Clip, taken

if TYPE_CHECKING:
    from torch import Tensor

FRONT_CLIPS, FRONT_FRAMES = 10, 20
WAVE_CLIPS, WAVE_FRAMES = 6, 9
"""Of a batch; the loss on sound skips the first frame, which depends on frames before the cut."""
MEL_MEAN, MEL_SPREAD = -7.0, 3.0
"""Of the spectra in nepers of power, about: targets of unit size."""
RESOLUTIONS = ((2048, 480, 1600, 80), (1024, 240, 800, 64), (512, 120, 400, 40), (256, 60, 160, 20))
"""Transform, hop, window, mel bands: what smears in one shows in another."""
HEARD_HZ, EMPTY_HZ = 8500, 9000
"""Up to where the sound is compared, and from where there shall be none: most of the voices end at 8 kHz."""
LOSS_FLOOR = 1e-5


@dataclass(frozen=True)
class Coded:
    """A clip at some level, and its codes."""

    clip: Clip
    gain: float
    codes: Tensor
    """[T, 16] int64."""

    def cut(self, first: int, last: int) -> Cut:
        import torch

        return Cut(
            wave=torch.from_numpy(self.clip.cut(first, last)) * self.gain,
            heard=taken(self.clip.heard, first, last),
            gain=self.gain,
            codes=self.codes[first:last],
        )


@dataclass(frozen=True)
class Cut:
    """Some frames of a clip."""

    wave: Tensor
    """At the clip's level, which the features are not."""
    heard: Heard
    gain: float
    codes: Tensor


def draw(coded: Sequence[Coded], count: int, frames: int, random: np.random.Generator) -> list[Cut]:
    """Random cuts of `frames` out of the clips that have as many."""
    cuts: list[Cut] = []
    while len(cuts) < count:
        one = coded[int(random.integers(len(coded)))]
        if one.clip.frames >= frames:
            first = int(random.integers(one.clip.frames - frames + 1))
            cuts.append(one.cut(first, first + frames))
    return cuts


def prepare(model: Any, coordinates_spread: Tensor, seed: int) -> None:
    """Start where training goes well: codes arrive at unit size, layer scales and Snake are neither silent nor alike, sound is soft.

    `coordinates_spread` [WIDTH] is the standard deviation of the features' coordinates.
    """
    import torch

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


def teach_front(model: Any, coded: Sequence[Coded], place: Path, seed: int, steps: int, until: int | None = None) -> float | None:
    """Codes → the first 66 channels at 100 Hz are log-mel, log pitch and voicing."""
    decoder = model.decoder
    trained = {name: parameter for name, parameter in taught(model).items() if not name.startswith("decoder.")}

    def loss(step: int) -> Tensor:
        import torch

        cuts = draw(coded, FRONT_CLIPS, FRONT_FRAMES, np.random.default_rng([seed, step]))
        found = raise_rate(decoder, decode_frames(decoder, torch.stack([cut.codes for cut in cuts])))
        return front_loss(found, torch.stack([front_target(cut.heard, cut.gain) for cut in cuts]))

    return learn(place, Schedule(steps, rate=3e-3, plateau=0.3), trained, loss, until)


def front_target(heard: Heard, gain: float) -> Tensor:
    """[8·T, 66]."""
    import torch

    tracks = [(heard.log_hz - USUAL_LOG_HZ) * 4, heard.voicing]
    spectra = (heard.log_mel(gain) - MEL_MEAN) / MEL_SPREAD
    return torch.cat([spectra, *(track.reshape(-1, 1).repeat_interleave(SPECTRA // PITCHES, 0) for track in tracks)], dim=1)


def front_loss(found: Tensor, targets: Tensor) -> Tensor:
    """[B, channels, 8·T] against [B, 8·T, 66]. Targets are one step late: their window ends where a spectrum's sound begins to fade."""
    found, targets = found[:, : BANDS + 2, :-1].transpose(1, 2), targets[:, 1:]
    wrong, voicing = (found - targets).square(), targets[..., -1:].clamp(0, 1)
    return wrong[..., :BANDS].mean() + 2 * (wrong[..., BANDS : BANDS + 1] * voicing).mean() + 0.3 * wrong[..., BANDS + 1].mean()


def teach_wave(
    model: Any, coded: Sequence[Coded], place: Path, seed: int, steps: int, until: int | None = None, compiled: bool = True
) -> float | None:
    """Codes → sound, the whole decoder but its codebooks. `compiled`: 1.7 times faster after a minute, and a C++ compiler is needed."""
    import torch

    decoder = model.decoder

    def tail(inside: Tensor) -> Tensor:
        return make_wave(decoder, raise_rate(decoder, inside))

    sound: Callable[[Tensor], Tensor] = torch.compile(tail, dynamic=False) if compiled else tail

    def loss(step: int) -> Tensor:
        cuts = draw(coded, WAVE_CLIPS, WAVE_FRAMES, np.random.default_rng([seed, step]))
        found = sound(decode_frames(decoder, torch.stack([cut.codes for cut in cuts])))
        wanted = torch.stack([cut.wave for cut in cuts])
        return wave_loss(found[:, SAMPLES_PER_FRAME:], wanted[:, SAMPLES_PER_FRAME:])

    return learn(place, Schedule(steps, rate=2e-3, plateau=0.4, warmup=100, clip=2.0, betas=(0.8, 0.98)), taught(model), loss, until)


def taught(model: Any) -> dict[str, Tensor]:
    """What training changes: all but the codebooks, and but the projections before them, which a decoder never uses."""
    return {
        name: parameter
        for name, parameter in model.decoder.named_parameters()
        if "_codebook" not in name and not (name.startswith("quantizer.") and ".input_proj" in name)
    }


def wave_loss(found: Tensor, wanted: Tensor) -> Tensor:
    """[B, samples] each: log magnitudes, log-mel and spectral convergence at every resolution, and no sound where voices have none."""
    import torch

    total = torch.zeros(())
    for index, (size, *_, bands) in enumerate(RESOLUTIONS):
        heard = size * HEARD_HZ // MASTER_RATE
        one, other = _power(found, index), _power(wanted, index)
        total = total + 0.25 * _log_distance(one[:, :heard], other[:, :heard])
        total = total + 0.5 * _log_distance(_mel(size, bands) @ one, _mel(size, bands) @ other)
        total = total + _convergence(one[:, :heard], other[:, :heard])
    size = RESOLUTIONS[1][0]
    empty = _power(found, 1)[:, size * EMPTY_HZ // MASTER_RATE :]
    return total / len(RESOLUTIONS) + 0.05 * torch.log1p(empty / LOSS_FLOOR).mean()


def _log_distance(one: Tensor, other: Tensor) -> Tensor:
    return ((one + LOSS_FLOOR).log() - (other + LOSS_FLOOR).log()).abs().mean()


def _convergence(one: Tensor, other: Tensor) -> Tensor:
    """The error's size over the sound's, clip by clip; 0.5 keeps silence from dividing by nothing."""
    one, other = (one + 1e-8).sqrt(), (other + 1e-8).sqrt()
    return ((one - other).square().sum((1, 2)).sqrt() / (other.square().sum((1, 2)).sqrt() + 0.5)).mean()


def _power(wave: Tensor, index: int) -> Tensor:
    """[B, bins, times]."""
    import torch

    size, hop, window, _ = RESOLUTIONS[index]
    shape = torch.hann_window(window)
    return torch.stft(wave, size, hop, window, shape, center=False, return_complex=True).abs().square() / shape.square().sum()


@cache
def _mel(size: int, bands: int) -> Tensor:
    import torch

    weights = torch.from_numpy(
        import_librosa().filters.mel(sr=MASTER_RATE, n_fft=size, n_mels=bands, fmin=LOWEST_HZ, fmax=HEARD_HZ, norm=None)
    )
    return weights / weights.sum(1, keepdim=True).clamp(min=1e-6)
