"""Sound in, sound out: judge whether a recording is usable, mix it to mono, resample it once, measure its bandwidth, write FLAC.

A recording is decoded twice in blocks, first to learn its facts (`probe`), then to resample it (`resampled`): memory holds one block.
Recordings of others are decoded by `data_prep.decoder` in a child process; in this process only what this package wrote itself.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from data_prep.formats import DECODE_ERRORS, EXTENSIONS, AudioError, Samples, Stream, in_words, open_stream

__all__ = ["EXTENSIONS", "AudioError", "Samples"]

MASTER_RATE = 24_000
"""Hz. Clips are cut at this rate, and all sample positions in this package count at it."""
SPEECH_RATE = 16_000
"""Hz. What voice activity detection and Whisper hear."""

SILENT = 3e-5  # standard deviation of full scale 1.0: -90 dBFS, the last bit of 16
DEAD_CHANNEL = 1e-4  # power relative to the loudest channel: -40 dB
CANCELLED = 0.25  # power of the mean relative to the mean power; equal channels give 1, unrelated ones 1/2, opposite ones 0
SHORTFALL = 0.01  # share of the declared length that may be missing: encoders' padding counts differently
LONGEST_HOURS = 24
FADE_SECONDS = 0.005

SPECTRUM = 1024  # samples per frame; at 24 kHz 43 ms and 23 Hz
MOST_FRAMES = 4000
LOUD_SHARE, QUIET_SHARE = 0.95, 0.1
"""Quantile of the frames that a frequency must be loud in (fricatives make 10 % of speech, clicks less), and share that are pauses."""
PAUSE_DB = 20.0
BELOW_PEAK_DB, ABOVE_FLOOR_DB = 70.0, 12.0
"""In studio recordings fricatives lie 30 to 50 dB below the loudest band; the loud quantile of steady noise is 5 dB above its mean."""
SMOOTHED = 15  # bins: a single line, as of a screen's flyback, is no bandwidth
QUANTISATION = (1 / 32768) ** 2 / 12  # power of the rounding to 16 bits, which clips and most recordings went through


@dataclass(frozen=True)
class Audio:
    """Mono sound that knows its rate: whoever needs another rate has to say so."""

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
    """What `probe` found out about a recording, and how it becomes mono."""

    model_config = ConfigDict(frozen=True)

    rate: int
    """Hz, native."""
    frames: int
    """Decoded samples per channel."""
    weights: tuple[float, ...]
    """Of each channel in the mono mix."""
    offset: float
    """Mean of the mix, to be subtracted."""
    warning: str = ""
    """Why less was decoded than the file declares; empty if nothing is missing."""

    @property
    def length(self) -> int:
        """Samples at `MASTER_RATE`."""
        return to_rate(self.frames, self.rate, MASTER_RATE)


def to_rate(position: int, from_rate: int, rate: int) -> int:
    """The one place where a sample position changes its rate: nearest integer, halves up."""
    return (2 * position * rate + from_rate) // (2 * from_rate)


def probe(path: Path, alive: Callable[[], None] = lambda: None) -> Track:
    """Decode once and judge; `alive` is called after each block.

    Raises `AudioError` (`unreadable`, `empty`, `nan`, `silent`, `too_long`); a truncated file only gets a warning.
    """
    stream = open_stream(path)
    _require_length(stream.declared or 0, stream.rate)
    frames, sums, products = 0, np.zeros(stream.channels), np.zeros((stream.channels, stream.channels))
    broken = ""
    try:
        for block in stream.blocks:
            _require_finite(block, frames, stream)
            wide = block.astype(np.float64)
            frames, sums, products = frames + len(block), sums + wide.sum(axis=0), products + wide.T @ wide
            _require_length(frames, stream.rate)
            alive()
    except DECODE_ERRORS as error:
        broken = f"decoding stopped after {frames / stream.rate:.2f} s{_of(stream)}: {in_words(error)}"
    if not frames:
        raise AudioError("unreadable" if broken else "empty", broken or "no samples in the file")
    mean = sums / frames
    covariance = products / frames - np.outer(mean, mean)
    if np.sqrt(max(np.diag(covariance))) < SILENT:
        raise AudioError("silent", f"{frames / stream.rate:.2f} s without any signal", frames / stream.rate)
    weights = _mono_weights(covariance)
    return Track(
        rate=stream.rate,
        frames=frames,
        weights=tuple(weights.tolist()),
        offset=float(weights @ mean),
        warning=broken or _shortfall(stream, frames),
    )


def resampled(path: Path, track: Track, rates: tuple[int, ...]) -> Iterator[list[Samples]]:
    """The mono mix in pieces, one per rate each time; every rate is resampled once from the native one (soxr VHQ), delay compensated.

    The pieces of a rate add up to `to_rate(track.frames, track.rate, rate)` samples.
    """
    import soxr

    weights = np.asarray(track.weights, np.float32)
    streams = [None if rate == track.rate else soxr.ResampleStream(track.rate, rate, 1, dtype="float32", quality="VHQ") for rate in rates]
    due = [to_rate(track.frames, track.rate, rate) for rate in rates]
    left = track.frames
    for block in _until(open_stream(path).blocks, track.frames):
        left -= len(block)
        mono = block @ weights - np.float32(track.offset)
        pieces = [mono if stream is None else stream.resample_chunk(mono, last=left == 0) for stream in streams]
        pieces = [piece[:rest] for piece, rest in zip(pieces, due, strict=True)]
        due = [rest - len(piece) for piece, rest in zip(pieces, due, strict=True)]
        yield pieces
    yield [np.zeros(rest, np.float32) for rest in due]


def load(path: Path, track: Track, *rates: int) -> list[Audio]:
    """The mono mix at each of `rates`, in memory."""
    pieces = zip(*resampled(path, track, rates), strict=True)
    return [Audio(np.concatenate(of_rate), rate) for of_rate, rate in zip(pieces, rates, strict=True)]


def read(path: Path, rate: int) -> Audio:
    """A whole short file as mono at `rate`. Raises `AudioError`."""
    track = probe(path)
    if track.warning:
        raise AudioError("truncated", track.warning, track.frames / track.rate)
    return load(path, track, rate)[0]


def bandwidth(samples: Samples, rate: int) -> int:
    """Hz up to which the sound stands out of its own noise: a recording of 16 kHz gives at most 8000, whatever rate it was brought to.

    The noise at each frequency is what the quietest frames hold, where these are pauses (20 dB below the loudest); never less than the
    rounding to 16 bits. 0 for silence and for less than one frame. Surer on half a minute than on a second.
    """
    if len(samples) < SPECTRUM:
        return 0
    hop = max(SPECTRUM // 2, len(samples) // MOST_FRAMES)
    window = np.blackman(SPECTRUM)
    frames = np.lib.stride_tricks.sliding_window_view(samples, SPECTRUM)[::hop] * window
    power = np.square(np.abs(np.fft.rfft(frames, axis=1)))
    loud = _smoothed(np.quantile(power, LOUD_SHARE, axis=0))
    floor = np.maximum(_smoothed(_pauses(power)), QUANTISATION * np.square(window).sum())
    heard = np.flatnonzero(loud > np.maximum(loud.max() * _ratio(-BELOW_PEAK_DB), floor * _ratio(ABOVE_FLOOR_DB)))
    return round(float(heard[-1]) * rate / SPECTRUM) if len(heard) else 0


def faded(audio: Audio) -> Audio:
    """The same with 5 ms of fade at both ends, so that a clip starts and ends at zero."""
    ramp = np.linspace(0.0, 1.0, min(int(FADE_SECONDS * audio.rate), len(audio.samples) // 2), dtype=np.float32)
    samples = audio.samples.copy()
    samples[: len(ramp)] *= ramp
    samples[len(samples) - len(ramp) :] *= ramp[::-1]
    return Audio(samples, audio.rate)


def flac(audio: Audio) -> bytes:
    """Mono 16-bit FLAC. Same samples, same bytes."""
    import soundfile

    integers = np.clip(np.rint(audio.samples.astype(np.float64) * 32768.0), -32768, 32767).astype(np.int16)
    buffer = io.BytesIO()
    soundfile.write(buffer, integers, audio.rate, format="FLAC", subtype="PCM_16")
    return buffer.getvalue()


def _pauses(power: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean spectrum of the quietest frames; zero if they are as loud as speech. `power`: [frames, bins]."""
    total = power.sum(axis=1)
    quiet = total <= np.quantile(total, QUIET_SHARE)
    is_pause = total[quiet].mean() < np.quantile(total, LOUD_SHARE) * _ratio(-PAUSE_DB)
    return power[quiet].mean(axis=0) if is_pause else np.zeros(power.shape[1])


def _smoothed(spectrum: NDArray[np.float64]) -> NDArray[np.float64]:
    around = np.pad(spectrum, SMOOTHED // 2, mode="edge")
    return np.median(np.lib.stride_tricks.sliding_window_view(around, SMOOTHED), axis=1)


def _ratio(decibel: float) -> float:
    return 10.0 ** (decibel / 10.0)


def _until(blocks: Iterator[Samples], frames: int) -> Iterator[Samples]:
    """Blocks up to `frames` in all: a damaged file raises behind them, and that was reported by `probe`."""
    left = frames
    while left > 0:
        block = next(blocks, None)
        if block is None:
            raise AudioError("unreadable", "it became shorter while it was read")
        block = block[:left]
        left -= len(block)
        yield block


def _require_finite(block: Samples, before: int, stream: Stream) -> None:
    bad = ~np.isfinite(block).all(axis=1)
    if bad.any():
        at = before + int(bad.argmax())
        raise AudioError("nan", f"a sample that is not a number at {at / stream.rate:.3f} s", (stream.declared or at) / stream.rate)


def _require_length(frames: int, rate: int) -> None:
    if frames > LONGEST_HOURS * 3600 * rate:
        hours = frames / rate / 3600
        raise AudioError("too_long", f"{hours:.1f} h or more in one file; divide it into files of at most {LONGEST_HOURS} h", frames / rate)


def _shortfall(stream: Stream, frames: int) -> str:
    """What is missing, in words; empty if nothing is."""
    seconds = f"{frames / stream.rate:.2f} s"
    if stream.faults:
        first = f"the first after {stream.faults[0] / stream.rate:.2f} s"
        return f"damaged: pieces left out that cannot be decoded: {len(stream.faults)}, {first}; {seconds}{_of(stream)} decoded"
    if stream.ends_midway:
        return f"truncated: the file ends before its sound does, after {seconds}"
    if stream.declared is not None and stream.declared - frames > SHORTFALL * stream.declared:
        return f"truncated: the file declares {stream.declared / stream.rate:.2f} s and holds {seconds}"
    return ""


def _of(stream: Stream) -> str:
    return "" if stream.declared is None else f" of {stream.declared / stream.rate:.2f}"


def _mono_weights(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of all channels; the loudest one alone if another is dead or if they cancel each other."""
    power = np.diag(covariance)
    mean = np.full(len(power), 1 / len(power))
    if power.min() < DEAD_CHANNEL * power.max() or mean @ covariance @ mean < CANCELLED * power.mean():
        return np.eye(len(power))[power.argmax()]
    return mean
