"""silero-vad's network at 16 kHz, computed over blocks of frames instead of one frame of 32 ms at a time.

The convolutions of a frame do not depend on other frames, so a block is one batch; only the LSTM goes through the frames in order, in one
call. The weights and the results are those of the wheel, up to the rounding of fp32: `load_network` compares the two before use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from overtone.finetune.terminal import print_diagnostic

FRAME, CONTEXT = 512, 64
"""Samples of a frame, and of the previous frame that the network gets with it."""
BLOCK = 1024
"""Frames per batch (33 s). Measured: 128 take 14 % more time, 2048 no less; the spectra of 1024 take 7 MB."""
SPECTRUM, HOP = 256, 128
STRIDES = (1, 2, 2, 1)
STATE = 128
TOLERANCE = 1e-4
"""Largest accepted difference of a probability between the two forms; 1.2e-6 is measured on two minutes of speech with silero-vad 6.2.3."""
CHECKED_FRAMES = 32
PREFIX = "_model."
"""Prefix of the weights for 16 kHz; those for 8 kHz have another."""


class FrameModel(Protocol):
    """A model that gives the speech probability of one frame after the other."""

    def reset_states(self) -> None:
        """Begin another recording."""
        ...

    def __call__(self, frame: Tensor, rate: int, /) -> Tensor:
        """Return the probability [1, 1] of a frame of `FRAME` samples."""
        ...


class SileroModel(FrameModel, Protocol):
    """The model of the package silero-vad."""

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return the weights by name."""
        ...


class SileroNetwork(nn.Module):
    """Speech probability of each frame. Layers: a Fourier transform as a convolution, four convolutions, an LSTM, a linear output."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        """`weights`: those of the wheel's TorchScript model. Raises KeyError or RuntimeError if they have other names or shapes."""
        super().__init__()
        self.basis = nn.Buffer(weights["stft.forward_basis_buffer"])  # [2 · (SPECTRUM / 2 + 1), 1, SPECTRUM]
        channels = [SPECTRUM // 2 + 1, 128, 64, 64, STATE]
        self.encoder = nn.ModuleList(
            nn.Conv1d(channels[layer], channels[layer + 1], 3, stride, padding=1) for layer, stride in enumerate(STRIDES)
        )
        for layer, convolution in enumerate(self.encoder):
            convolution.load_state_dict({name: weights[f"encoder.{layer}.reparam_conv.{name}"] for name in ("weight", "bias")})
        self.rnn = nn.LSTM(STATE, STATE, batch_first=True)
        self.rnn.load_state_dict(
            {f"{name}_l0": weights[f"decoder.rnn.{name}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        )
        self.output = nn.Conv1d(STATE, 1, 1)
        self.output.load_state_dict({name: weights[f"decoder.decoder.2.{name}"] for name in ("weight", "bias")})

    def forward(self, frames: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the probabilities [n] of samples [n, CONTEXT + FRAME], and the state of the LSTM after them."""
        waves = functional.pad(frames.unsqueeze(1), (0, CONTEXT), mode="reflect")
        spectra = functional.conv1d(waves, self.basis, stride=HOP)
        real, imaginary = spectra[:, : SPECTRUM // 2 + 1], spectra[:, SPECTRUM // 2 + 1 :]
        features = (real.square() + imaginary.square()).sqrt()
        for convolution in self.encoder:
            features = functional.relu(convolution(features))
        hidden, state = self.rnn(features.squeeze(-1).unsqueeze(0), state)
        return torch.sigmoid(self.output(functional.relu(hidden[0].unsqueeze(-1))))[:, 0, 0], state


@torch.inference_mode()
def compute_probabilities(network: SileroNetwork, samples: Tensor, report: Callable[[int], None] = lambda _done: None) -> Tensor:
    """Return the speech probabilities [frames] of samples [n] at 16 kHz; the last frame is padded with zeros. `report` gets the number of
    samples done after each block. Memory does not depend on n, apart from the result."""
    scan = ProbabilityScan(network)
    while scan.advance(samples, is_complete=True):
        report(min(scan.frames * FRAME, len(samples)))
    return scan.get_probabilities()


class ProbabilityScan:
    """The speech probabilities of a recording whose samples arrive gradually, computed block by block with the same result as at once."""

    def __init__(self, network: SileroNetwork) -> None:
        self._network = network
        self._state: tuple[Tensor, Tensor] | None = None
        self._found = [torch.zeros(0)]
        self.frames = 0
        """Frames with a probability."""

    @torch.inference_mode()
    def advance(self, samples: Tensor, is_complete: bool) -> bool:
        """Compute the next block of `samples` [n], all samples received so far; returns False if the block is incomplete. `is_complete`:
        there will be no more, so the last block may be shorter, and its last frame is padded with zeros."""
        start = self.frames * FRAME
        if start >= len(samples) or (start + BLOCK * FRAME > len(samples) and not is_complete):
            return False
        probabilities, self._state = self._network(_cut_block(samples, start), self._state)
        self._found.append(probabilities)
        self.frames += len(probabilities)
        return True

    def get_probabilities(self) -> Tensor:
        """Return the probabilities [frames] so far."""
        self._found = [torch.cat(self._found)]
        return self._found[0]


def load_network(wheel: SileroModel) -> SileroNetwork | None:
    """Return the network with the weights of `wheel`, silero-vad's own model; None, reported on standard error, if this module does not
    compute what that model computes: another release may have another network."""
    try:
        weights = {name.removeprefix(PREFIX): value for name, value in wheel.state_dict().items() if name.startswith(PREFIX)}
        network = SileroNetwork(weights).eval()
        difference = _compare_probabilities(network, wheel)
        if difference <= TOLERANCE:
            return network
        why = f"its probabilities differ by {difference:.2g}"
    except (AttributeError, KeyError, RuntimeError) as error:
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
    print_diagnostic(
        f"note: silero-vad {version('silero-vad')} has another network than the one known here ({why}); its own code is used, "
        "which takes ten times as long"
    )
    return None


def _cut_block(samples: Tensor, start: int) -> Tensor:
    """Return the samples [frames, CONTEXT + FRAME] of the block that begins at sample `start`."""
    block = samples[max(start - CONTEXT, 0) : start + BLOCK * FRAME]
    before = CONTEXT if start == 0 else 0
    padded = functional.pad(block, (before, -(len(block) + before - CONTEXT) % FRAME))
    return padded.unfold(0, CONTEXT + FRAME, FRAME)


@torch.inference_mode()
def _compare_probabilities(network: SileroNetwork, wheel: SileroModel) -> float:
    """Return the largest difference on a voice-like sound: harmonics of 120 Hz in syllables of a quarter of a second."""
    seconds = torch.arange(CHECKED_FRAMES * FRAME) / 16_000
    tone = sum(torch.sin(2 * torch.pi * 120 * order * seconds) / order for order in range(1, 30))
    samples = 0.2 * tone * torch.sin(4 * torch.pi * seconds).square()
    wheel.reset_states()
    expected = torch.stack([wheel(frame, 16_000)[0, 0] for frame in samples.split(FRAME)])
    wheel.reset_states()
    return float((compute_probabilities(network, samples) - expected).abs().max())
