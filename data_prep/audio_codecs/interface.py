"""Interfaces of the audio codecs and speaker encoders that data preparation uses, for any speech model.

Each model family has an adapter that implements these protocols; `data_prep/audio_codecs/selection.py` chooses it by the model's own
config. `Codec` and `SpeakerEncoder` describe files on disk: they hold no weights, so they can be sent to worker processes. `load` reads
the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import Samples
from overtone.finetune.errors import UserError

Codes = NDArray[np.uint16]
"""Codes of one clip, [frames, codebooks]."""


class UnsupportedModelError(UserError):
    """A model whose configs say that it has no codec or speaker encoder of a supported kind. Damaged files are plain `UserError`s."""


class CodecError(Exception):
    """The codes of one clip have the wrong shape or range."""


@dataclass(frozen=True)
class CodeFormat:
    """Shape and range of a codec's codes: enough to check stored codes without the codec's files."""

    sample_rate: int
    """Samples per second of the audio that the codec takes."""
    samples_per_frame: int
    codebooks: int
    """Codes in each frame."""
    codebook_size: int
    """Codes are from 0 to `codebook_size` - 1."""

    def __str__(self) -> str:
        rate = self.sample_rate / self.samples_per_frame
        return f"{self.codebooks} codes a frame, {rate:.4g} frames/s"

    def count_frames(self, samples: int) -> int:
        """Return the frames of a clip of so many samples at `sample_rate`, a partial last frame included."""
        return -(-samples // self.samples_per_frame)


def check_codes(codes: NDArray[np.integer], frames: int, wanted: CodeFormat) -> Codes:
    """Return the codes [frames, codebooks] of one clip as they are stored. Raises `CodecError` for codes of a wrong shape or range."""
    if codes.shape != (expected := (frames, wanted.codebooks)):
        raise CodecError(f"codes of shape {codes.shape}, expected {expected}")
    if codes.size and (codes.min() < 0 or codes.max() >= wanted.codebook_size):
        raise CodecError(f"codes from {codes.min()} to {codes.max()} do not fit a codebook of {wanted.codebook_size}")
    return codes.astype(np.uint16)


class Codec(Protocol):
    """A neural audio codec: turns audio into frames of discrete codes, and back."""

    @property
    def folder(self) -> Path:
        """Folder with the codec's weights and config."""

    @property
    def model(self) -> Path:
        """Folder of the model that contains the codec: what `--model` takes."""

    @property
    def sample_rate(self) -> int:
        """Samples per second of the audio that `encode` takes and `decode` returns."""

    @property
    def samples_per_frame(self) -> int:
        """Samples that one frame covers."""

    @property
    def frame_rate(self) -> float:
        """Frames per second: `sample_rate` / `samples_per_frame` (12.5 for Qwen3-TTS and Mimi)."""

    @property
    def codebooks(self) -> int:
        """Codes in each frame: 16 for Qwen3-TTS, 32 for Mimi as CSM uses it.

        A codec whose levels run at different rates counts all codes of one frame of its slowest level: SNAC has 1 + 2 + 4 = 7.
        """

    @property
    def codebook_size(self) -> int:
        """Number of different codes in each codebook. Raises `UserError` if the codec's config does not say it."""

    @property
    def recipe(self) -> str:
        """Name of the recipe that trains on its codes, for the next command."""

    def digest(self) -> str:
        """Return the SHA-256 over the codec's files: codecs with the same digest produce the same codes. Raises `UserError` if weights are
        missing."""

    def estimate_worker_bytes(self, seconds: float) -> int:
        """Return the memory, in bytes, of the weights and of encoding so many seconds of audio at a time."""

    def load(self, device: str) -> LoadedCodec:
        """Read the weights. Raises `UserError` if they cannot be read."""


class LoadedCodec(Protocol):
    """A codec with its weights on a device."""

    def encode(self, clips: Sequence[Samples]) -> list[Codes]:
        """Return the codes [frames, codebooks] of each clip. The codes of a clip do not depend on the others in the batch. Raises
        `CodecError`."""

    def decode(self, codes: Codes) -> Samples:
        """Return the audio of one clip's codes."""


def read_code_format(codec: Codec) -> CodeFormat:
    """Return the format of a codec's codes. Reads the codec's config once. Raises `UserError` like `Codec.codebook_size`."""
    return CodeFormat(codec.sample_rate, codec.samples_per_frame, codec.codebooks, codec.codebook_size)


class SpeakerEncoder(Protocol):
    """A network that maps a clip to a vector of the speaker's voice."""

    @property
    def digest(self) -> str:
        """SHA-256 of weights and architecture: encoders with the same digest compute the same vectors."""

    @property
    def sample_rate(self) -> int:
        """Samples per second of the audio that `embed` takes."""

    def load(self, device: str = "cpu") -> LoadedSpeakerEncoder:
        """Read the weights. Raises `UserError` if they cannot be read."""


class LoadedSpeakerEncoder(Protocol):
    """A speaker encoder with its weights on a device."""

    @property
    def sample_rate(self) -> int:
        """Samples per second of the audio that `embed` takes."""

    @property
    def shortest_seconds(self) -> float:
        """A shorter clip does not identify a voice and is not embedded."""

    @property
    def dimensions(self) -> int:
        """Length of the vectors."""

    def embed(self, clip: Samples) -> NDArray[np.float32]:
        """Return the vector [dimensions] of a clip, not normalized."""
