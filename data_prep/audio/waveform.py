"""Audio input and output: validate a recording, mix it to mono, resample it once, write FLAC.

A recording is decoded twice in blocks, first to analyse it (`probe_recording`), then to resample it (`resample_blocks`), so memory holds
one block.
Untrusted recordings are decoded in a child process (`data_prep/audio/sandboxed_decoder.py`); this process decodes only files that this
package wrote.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from overtone.data_prep.audio.channel_selection import AUTO, ChannelLevels, choose_channels, find_channel
from overtone.data_prep.audio.decoded_stream import DECODE_ERRORS, AudioError, Samples, Stream, describe_missing, describe_stop
from overtone.data_prep.audio.stream_reader import EXTENSIONS, MOST_CHANNELS, ignore_progress, open_stream

__all__ = ["EXTENSIONS", "AudioError", "Samples"]

MASTER_RATE = 24_000
"""Sample rate of clips and of all sample positions in this package, in Hz."""
SPEECH_RATE = 16_000
"""Input rate of voice activity detection and Whisper, in Hz."""

SILENT = 3e-5  # standard deviation of full scale 1.0: -90 dBFS, the last bit of 16
LARGEST = 1e12
LONGEST_HOURS = 24
FADE_SECONDS = 0.005


@dataclass(frozen=True)
class AudioLimits:
    """Limits of a recording, checked against the header before decoding, and again while decoding."""

    seconds: float = LONGEST_HOURS * 3600
    channels: int = MOST_CHANNELS
    samples: float = inf
    """Total samples of all channels, which determine the cost of decoding."""

    def require(self, frames: int, stream: Stream) -> None:
        """Raises `AudioError` for a recording that is too long (`too_long`), or has too many channels (`unreadable`)."""
        seconds = frames / stream.rate
        if stream.channels > self.channels:
            raise AudioError("unreadable", f"{stream.channels} channels; at most {self.channels} are read", seconds)
        if seconds > self.seconds:
            if self.seconds < 3600:
                raise AudioError("too_long", f"{seconds:.0f} s or more; at most {self.seconds:.0f} s are read", seconds)
            hours, most = seconds / 3600, self.seconds / 3600
            raise AudioError("too_long", f"{hours:.1f} h or more in one file; split it into files of at most {most:g} h", seconds)
        if frames * stream.channels > self.samples:
            found = f"{frames * stream.channels:,} samples or more at {stream.rate} Hz in {stream.channels} channels"
            raise AudioError("too_long", f"{found}; at most {self.samples:,.0f} are read: use a lower rate, or mono", seconds)


RECORDING = AudioLimits()
"""Limits of recordings for datasets."""


@dataclass(frozen=True)
class Audio:
    """Mono audio with its sample rate."""

    samples: Samples
    """[n], full scale 1.0."""
    rate: int
    """Hz."""

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate

    def cut(self, start: int, stop: int) -> Audio:
        return Audio(self.samples[start:stop], self.rate)


class Track(BaseModel):
    """Result of `probe_recording`: native format of a recording, and its mono mix."""

    model_config = ConfigDict(frozen=True)

    rate: int
    """Hz, native."""
    frames: int
    """Decoded samples per channel."""
    weights: tuple[float, ...]
    """Weight of each channel in the mono mix."""
    offset: float
    """Mean (DC offset) of the mix, to be subtracted."""
    means: tuple[float, ...] = ()
    """Mean of each channel."""
    channel: str = "mono"
    """Channel that the mix is made of: `mono`, `mix` (of several), `left`, `right`, or a number."""
    channel_note: str = ""
    """The reason why the mix is made of only one of several channels."""
    apart: tuple[int, ...] = ()
    """Channels with a sound of their own (`channel_selection.ChannelChoice`)."""
    warning: str = ""
    """The reason why less was decoded than the file declares; empty if complete."""
    note: str = ""
    """Notes on which sound of the file was read, if it has several, and where silence replaces a pause of its packets."""

    @property
    def length(self) -> int:
        """Samples at `MASTER_RATE`."""
        return convert_position(self.frames, self.rate, MASTER_RATE)


def convert_position(position: int, from_rate: int, rate: int) -> int:
    """Convert a sample position to another rate, rounded to nearest, halves up. All conversions use this function."""
    return (2 * position * rate + from_rate) // (2 * from_rate)


def probe_recording(
    path: Path, alive: Callable[[float], None] = lambda _seconds: None, bounds: AudioLimits = RECORDING, channels: str = AUTO
) -> Track:
    """Decode once and validate; `alive` is called after each block with the seconds decoded so far. `channels`: see `choose_channels`.

    Raises `AudioError` (`unreadable`, `empty`, `nan`, `silent`, `too_long`, `missing_channel`); a truncated file only gets a warning.
    """
    stream = open_stream(path, lambda: alive(0.0))
    bounds.require(stream.declared or 0, stream)
    if (find_channel(channels) or 0) >= stream.channels:
        held = "one channel" if stream.channels == 1 else f"{stream.channels} channels"
        seconds = (stream.declared or 0) / stream.rate
        raise AudioError("missing_channel", f"--channels {channels} is requested, and the file has {held}", seconds)
    frames, sums, products = 0, np.zeros(stream.channels), np.zeros((stream.channels, stream.channels))
    levels, broken = ChannelLevels(stream.rate, stream.channels), ""
    try:
        for block in stream.blocks:
            _require_finite(block, frames, stream)
            wide = block.astype(np.float64)
            frames, sums, products = frames + len(block), sums + wide.sum(axis=0), products + wide.T @ wide
            levels.add(block)
            bounds.require(frames, stream)
            alive(frames / stream.rate)
    except DECODE_ERRORS as error:
        broken = "; ".join([*stream.missing, describe_stop(stream, frames, error)])
    if not frames:
        raise AudioError("unreadable" if broken else "empty", broken or "no samples in the file")
    mean = sums / frames
    covariance = products / frames - np.outer(mean, mean)
    choice = choose_channels(channels, covariance, levels.measure())
    if choice.weights @ covariance @ choice.weights < SILENT**2:
        of_channel = "" if stream.channels == 1 or channels == AUTO else f" in --channels {channels}"
        raise AudioError("silent", f"{frames / stream.rate:.2f} s without any signal{of_channel}", frames / stream.rate)
    return Track(
        rate=stream.rate,
        frames=frames,
        weights=tuple(choice.weights.tolist()),
        offset=float(choice.weights @ mean),
        means=tuple(mean.tolist()),
        channel=choice.name,
        channel_note=choice.note,
        apart=choice.apart,
        warning=broken or describe_missing(stream, frames),
        note="; ".join(stream.notes),
    )


def resample_blocks(
    path: Path, track: Track, rates: tuple[int, ...], alive: Callable[[], None] = ignore_progress
) -> Iterator[list[Samples]]:
    """Yield the mono mix in pieces, one per rate; each rate is resampled once from the native rate (soxr VHQ), delay compensated.

    The pieces of a rate add up to `convert_position(track.frames, track.rate, rate)` samples.
    """
    import soxr

    weights = np.asarray(track.weights, np.float32)
    streams = [None if rate == track.rate else soxr.ResampleStream(track.rate, rate, 1, dtype="float32", quality="VHQ") for rate in rates]
    due = [convert_position(track.frames, track.rate, rate) for rate in rates]
    left = track.frames
    for block in _take_frames(open_stream(path, alive).blocks, track.frames):
        left -= len(block)
        mono = block @ weights - np.float32(track.offset)
        pieces = [mono if stream is None else stream.resample_chunk(mono, last=left == 0) for stream in streams]
        pieces = [piece[:rest] for piece, rest in zip(pieces, due, strict=True)]
        due = [rest - len(piece) for piece, rest in zip(pieces, due, strict=True)]
        yield pieces
    yield [np.zeros(rest, np.float32) for rest in due]


def load_track(path: Path, track: Track, *rates: int) -> list[Audio]:
    """Return the mono mix at each of `rates`, in memory: samples [n] in float32."""
    pieces = zip(*resample_blocks(path, track, rates), strict=True)
    return [Audio(np.concatenate(of_rate), rate) for of_rate, rate in zip(pieces, rates, strict=True)]


def read_audio(path: Path, rate: int) -> Audio:
    """Read a whole short file as mono at `rate`, DC offset removed. Raises `AudioError`."""
    return load_track(path, _probe_whole(path), rate)[0]


def read_audio_unchanged(path: Path) -> Audio:
    """Read a whole short file as mono at its native rate, with its DC offset. Raises `AudioError`."""
    track = _probe_whole(path).model_copy(update={"offset": 0.0})
    return load_track(path, track, track.rate)[0]


def _probe_whole(path: Path) -> Track:
    track = probe_recording(path)
    if track.warning:
        raise AudioError("truncated", track.warning.removeprefix("truncated: "), track.frames / track.rate)
    return track


def fade_edges(audio: Audio) -> Audio:
    """Return the audio with a 5 ms fade at both ends, so that a clip starts and ends at zero."""
    ramp = np.linspace(0.0, 1.0, min(int(FADE_SECONDS * audio.rate), len(audio.samples) // 2), dtype=np.float32)
    samples = audio.samples.copy()
    samples[: len(ramp)] *= ramp
    samples[len(samples) - len(ramp) :] *= ramp[::-1]
    return Audio(samples, audio.rate)


def convert_to_int16(samples: Samples) -> NDArray[np.int16]:
    """Return [n] 16-bit samples, rounded to nearest and clipped at full scale."""
    return np.clip(np.rint(samples * np.float32(32768)), -32768, 32767).astype(np.int16)


def encode_flac(audio: Audio, comment: str = "") -> bytes:
    """Return the bytes of a mono 16-bit FLAC file, deterministic for the same samples. `comment`: a mark of synthetic speech, or none."""
    return encode_pcm_file(convert_to_int16(audio.samples), audio.rate, "FLAC", comment)


def encode_pcm_file(samples: NDArray[np.int16], rate: int, layout: str, comment: str = "") -> bytes:
    """Return the mono 16-bit samples [n] as the bytes of a file in one of libsndfile's formats, with or without a comment in its tags."""
    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", rate, 1, "PCM_16", format=layout) as file:
        if comment:
            file.comment = comment
        file.write(samples)
    return buffer.getvalue()


def _take_frames(blocks: Iterator[Samples], frames: int) -> Iterator[Samples]:
    """Yield blocks up to `frames` in total; beyond them a damaged file raises, which `probe_recording` has reported."""
    left = frames
    while left > 0:
        block = next(blocks, None)
        if block is None:
            raise AudioError("unreadable", "the file became shorter while it was read")
        block = block[:left]
        left -= len(block)
        yield block


def _require_finite(block: Samples, before: int, stream: Stream) -> None:
    """Raises `AudioError` for NaN, Inf, and values whose square overflows; floating-point files may contain them."""
    bad = ~(np.abs(block) < LARGEST).all(axis=1)
    if bad.any():
        at = before + int(bad.argmax())
        raise AudioError("nan", f"a sample that is not a number at {at / stream.rate:.3f} s", (stream.declared or at) / stream.rate)
