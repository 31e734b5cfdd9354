"""Result of a decoder: the open stream of a recording, its errors, and descriptions of audio that could not be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]

SHORTFALL = 0.01
"""Share of the declared length that may be missing."""
PADDING_SECONDS = 0.05
"""Seconds of it that may be missing from short files, too: some containers count what the encoder adds before the sound, which a decoder
drops (312 samples at 48 kHz with Opus, up to 2,112 with AAC)."""
DECODE_ERRORS: tuple[type[Exception], ...] = (OSError, RuntimeError, ValueError, EOFError, LookupError)
"""soundfile's LibsndfileError is a RuntimeError; most of PyAV's errors derive from one of these."""


class AudioError(Exception):
    """An unusable recording. `reason`: one word for tables; `detail`: what is wrong; `seconds`: its duration, if known."""

    def __init__(self, reason: str, detail: str, seconds: float = 0.0) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail, self.seconds = reason, detail, seconds


@dataclass(frozen=True)
class Stream:
    """An open recording."""

    rate: int
    channels: int
    declared: int | None
    """Number of frames by the header; None if unknown or only estimated."""
    blocks: Iterator[Samples]
    """[frames, channels] each."""
    ends_midway: bool = False
    """The file ends before its stream; how much is missing is unknown."""
    faults: list[int] = field(default_factory=list)
    """Number of frames decoded before each skipped, damaged packet; grows while the blocks are read."""
    missing: list[str] = field(default_factory=list)
    """Descriptions of unreadable audio in the parts of a joined file; grows while the blocks are read."""
    notes: list[str] = field(default_factory=list)
    """Notes on which sound of the file is read, and how its times were used; grows while the blocks are read."""


def fit_channels(block: Samples, channels: int) -> Samples:
    """Return [frames, channels] of a block with another number of channels: fewer are repeated, more are averaged (1 and 3 of four, 2 and
    4)."""
    own = block.shape[1]
    if own <= channels:
        return np.ascontiguousarray(block[:, np.arange(channels) % own])
    return np.stack([block[:, first::channels].mean(axis=1) for first in range(channels)], axis=1)


def format_error(error: Exception) -> str:
    """Return the message of a decoder's error, without codes and names."""
    return getattr(error, "strerror", None) or str(error)


def describe_missing(stream: Stream, frames: int) -> str:
    """Return the description of audio that is missing after all blocks were read, `frames` in total; empty if complete."""
    seconds = f"{frames / stream.rate:.2f} s"
    if stream.missing:
        return "; ".join(stream.missing)
    if stream.faults:
        first = f"the first after {stream.faults[0] / stream.rate:.2f} s"
        decoded = f"{seconds}{format_declared(stream)} decoded"
        return f"damaged: pieces dropped because they cannot be decoded: {len(stream.faults)}, {first}; {decoded}"
    if stream.ends_midway:
        return f"truncated: the file ends before its audio does, after {seconds}"
    if stream.declared is not None and stream.declared - frames > max(SHORTFALL * stream.declared, PADDING_SECONDS * stream.rate):
        return f"truncated: the file declares {stream.declared / stream.rate:.2f} s and holds {seconds}"
    return ""


def describe_stop(stream: Stream, frames: int, error: Exception) -> str:
    """Return the description of audio that is missing because decoding failed after `frames`."""
    return f"decoding stopped after {frames / stream.rate:.2f} s{format_declared(stream)}: {format_error(error)}"


def format_declared(stream: Stream) -> str:
    """Return ` of SECONDS`, the duration by the header, or an empty string."""
    return "" if stream.declared is None else f" of {stream.declared / stream.rate:.2f}"
