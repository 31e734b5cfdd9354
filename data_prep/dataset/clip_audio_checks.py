"""Decode clips to validate them: rate, channels, length, digest, and errors such as NaN, silence or truncation; samples are not kept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from overtone.data_prep.audio.decoded_stream import DECODE_ERRORS, AudioError, describe_missing
from overtone.data_prep.audio.stream_reader import open_stream
from overtone.data_prep.audio.waveform import SILENT, convert_position
from overtone.finetune.storage import files


@dataclass(frozen=True)
class AudioInfo:
    """Format, length and digest of a valid clip."""

    rate: int
    channels: int
    frames: int
    digest: str
    """SHA-256 of the file."""

    @property
    def seconds(self) -> float:
        return self.frames / self.rate

    def count_samples(self, rate: int) -> int:
        """Return the length of the clip when it is resampled to `rate`."""
        return convert_position(self.frames, self.rate, rate)


def inspect_clips(paths: Iterable[Path]) -> dict[Path, AudioInfo | AudioError]:
    """Run `inspect_clip` for each path, on all cores; the decoders release the GIL."""
    distinct = list(dict.fromkeys(paths))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(distinct, pool.map(_inspect_or_error, distinct), strict=True))


def _inspect_or_error(path: Path) -> AudioInfo | AudioError:
    try:
        return inspect_clip(path)
    except AudioError as error:
        return error


def inspect_clip(path: Path) -> AudioInfo:
    """Decode a clip completely. Raises `AudioError` (`no_file`, `unreadable`, `empty`, `nan`, `silent`, `truncated`)."""
    _require_file(path)
    stream = open_stream(path)
    frames, low, high = 0, np.inf, -np.inf
    for block in _read_blocks(stream.blocks):
        if not len(block):
            continue
        frames += len(block)
        lowest, highest = float(block.min()), float(block.max())
        if not np.isfinite(highest - lowest):
            raise AudioError("nan", f"a sample that is not a number before {frames / stream.rate:.2f} s")
        low, high = min(low, lowest), max(high, highest)
    if not frames:
        raise AudioError("empty", "no samples in the file")
    if high - low < SILENT:
        raise AudioError("silent", f"{frames / stream.rate:.2f} s without any signal")
    if problem := describe_missing(stream, frames):
        raise AudioError("truncated", problem.removeprefix("truncated: "))
    return AudioInfo(stream.rate, stream.channels, frames, files.digest(path))


def _require_file(path: Path) -> None:
    try:
        there = path.is_file()
    except OSError as error:  # a name too long, a folder that is closed
        raise AudioError("no_file", f"cannot access the file: {error.strerror}") from error
    if not there:
        raise AudioError("no_file", "there is no such file")


def _read_blocks(blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    try:
        yield from blocks
    except DECODE_ERRORS as error:
        raise AudioError("unreadable", f"decoding stopped: {error}") from error
