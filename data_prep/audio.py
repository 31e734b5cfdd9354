"""Sound in, sound out: decode any common format, judge whether it is usable, resample once, write FLAC.

Nothing here calls an external program. soundfile reads what libsndfile knows; PyAV, whose wheel carries its codecs, reads the rest
(m4a, wma…). A recording is decoded twice in blocks, first to learn its facts (`probe`), then to resample it (`load`), so that memory holds
only the result.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

EXTENSIONS = (".aac", ".aif", ".aiff", ".flac", ".m4a", ".mp3", ".ogg", ".opus", ".wav", ".webm", ".wma")
MASTER_RATE = 24_000
"""Hz. Clips are cut at this rate, and all sample positions in this package count at it."""
SPEECH_RATE = 16_000
"""Hz. What voice activity detection and Whisper hear."""

BLOCK = 1 << 14  # frames: what is lost in front of a defect is at most this
SILENT = 3e-5  # standard deviation of full scale 1.0: -90 dBFS, the last bit of 16
DEAD_CHANNEL = 1e-4  # power relative to the loudest channel: -40 dB
CANCELLED = 0.25  # power of the mean relative to the mean power; equal channels give 1, unrelated ones 1/2, opposite ones 0
SHORTFALL = 0.01  # share of the declared length that may be missing: encoders' padding counts differently
FADE_SECONDS = 0.005

Samples = NDArray[np.float32]


class AudioError(Exception):
    """A recording that cannot be used. `reason` is one word for the tables, `detail` says what was found."""

    def __init__(self, reason: str, detail: str, seconds: float = 0.0) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail, self.seconds = reason, detail, seconds


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


def probe(path: Path) -> Track:
    """Decode once and judge. Raises `AudioError` (`unreadable`, `empty`, `nan`, `silent`); a truncated file only gets a warning."""
    stream = _open(path)
    frames, sums, products = 0, np.zeros(stream.channels), np.zeros((stream.channels, stream.channels))
    broken = ""
    try:
        for block in stream.blocks:
            _require_finite(block, frames, stream.rate)
            wide = block.astype(np.float64)
            frames, sums, products = frames + len(block), sums + wide.sum(axis=0), products + wide.T @ wide
    except DECODE_ERRORS as error:
        broken = f"decoding stopped after {frames / stream.rate:.2f} s: {error}"
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
        warning=broken or _shortfall(stream.declared, frames, stream.rate),
    )


def load(path: Path, track: Track, *rates: int) -> list[Audio]:
    """The mono mix at each of `rates`, every one resampled once from the native rate (soxr VHQ), delay compensated."""
    import soxr

    weights = np.asarray(track.weights, np.float32)
    streams = [None if rate == track.rate else soxr.ResampleStream(track.rate, rate, 1, dtype="float32", quality="VHQ") for rate in rates]
    outputs = [_Filled(to_rate(track.frames, track.rate, rate)) for rate in rates]
    left = track.frames
    for block in _until(_open(path).blocks, track.frames):
        left -= len(block)
        mono = block @ weights - np.float32(track.offset)
        for stream, output in zip(streams, outputs, strict=True):
            output.add(mono if stream is None else stream.resample_chunk(mono, last=left == 0))
    return [Audio(output.samples, rate) for output, rate in zip(outputs, rates, strict=True)]


def read(path: Path, rate: int) -> Audio:
    """A whole short file as mono at `rate`. Raises `AudioError`."""
    track = probe(path)
    if track.warning:
        raise AudioError("truncated", track.warning, track.frames / track.rate)
    return load(path, track, rate)[0]


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


class _Filled:
    """An array of known length that is filled from the left; what a resampler gives beyond it is dropped."""

    def __init__(self, length: int) -> None:
        self.samples: Samples = np.zeros(length, np.float32)
        self._used = 0

    def add(self, piece: Samples) -> None:
        piece = piece[: len(self.samples) - self._used]
        self.samples[self._used : self._used + len(piece)] = piece
        self._used += len(piece)


@dataclass(frozen=True)
class _Stream:
    rate: int
    channels: int
    declared: int | None
    """Frames that the file says it has; None if it does not say, or only guesses."""
    blocks: Iterator[Samples]
    """[frames, channels] each."""


DECODE_ERRORS: tuple[type[Exception], ...] = (OSError, RuntimeError, ValueError, EOFError, LookupError)
"""soundfile's LibsndfileError is a RuntimeError; PyAV's errors derive from each of the others."""


def _open(path: Path) -> _Stream:
    import soundfile

    try:
        info = soundfile.info(str(path))
    except soundfile.LibsndfileError as first:
        return _open_with_av(path, first)
    declared = _riff_frames(path) if info.format in ("WAV", "WAVEX", "RF64") else info.frames
    return _Stream(info.samplerate, info.channels, declared, _soundfile_blocks(path))


def _soundfile_blocks(path: Path) -> Iterator[Samples]:
    import soundfile

    class Forward(soundfile.SoundFile):
        """soundfile seeks after each read if it can, and a decoder that looks back (MP3, Opus) then starts anew: a fault at each block."""

        def seekable(self) -> bool:
            return False

    with Forward(str(path)) as file:
        while len(block := file.read(BLOCK, dtype="float32", always_2d=True)):
            yield block


def _open_with_av(path: Path, first: Exception) -> _Stream:
    import av

    try:
        container = av.open(str(path))
    except DECODE_ERRORS as error:
        raise AudioError("unreadable", f"soundfile: {first}; PyAV: {error}") from error
    stream = next(iter(container.streams.audio), None)
    if stream is None or not stream.rate or not stream.channels:  # a name like a.flac is enough for FFmpeg to see a stream in garbage
        container.close()
        raise AudioError("unreadable", f"soundfile: {first}; PyAV: no audio stream that can be decoded")
    guessed = container.format.name == "aac" or stream.duration is None or stream.time_base is None  # a raw ADTS file has no header
    declared = None if guessed else round(stream.duration * stream.time_base * stream.rate)
    return _Stream(stream.rate, stream.channels, declared, _av_blocks(container))


def _av_blocks(container: object) -> Iterator[Samples]:
    import av
    import av.container

    assert isinstance(container, av.container.InputContainer)
    planar = av.AudioResampler(format="fltp")  # only the sample format: rate and channels stay
    with container:
        for frame in container.decode(audio=0):
            for plain in planar.resample(frame):
                yield np.ascontiguousarray(plain.to_ndarray().T)


def _riff_frames(path: Path) -> int | None:
    """Frames by the header of a WAV file. libsndfile repairs the size of a truncated one silently, so read it ourselves."""
    with path.open("rb") as file:
        if file.read(4) != b"RIFF":
            return None
        file.seek(12)
        frame_bytes = 0
        while len(head := file.read(8)) == 8:
            size = int.from_bytes(head[4:], "little")
            if head[:4] == b"fmt ":
                frame_bytes = int.from_bytes(file.read(size)[12:14], "little")
            elif head[:4] == b"data":
                unknown = size in (0, 0xFFFFFFFF) or not frame_bytes  # written to a pipe: the size was never filled in
                return None if unknown else size // frame_bytes
            else:
                file.seek(size + size % 2, io.SEEK_CUR)
    return None


def _until(blocks: Iterator[Samples], frames: int) -> Iterator[Samples]:
    """Blocks up to `frames` in all: a damaged file raises behind them, and that was reported by `probe`."""
    left = frames
    while left > 0:
        block = next(blocks)[:left]
        left -= len(block)
        yield block


def _require_finite(block: Samples, before: int, rate: int) -> None:
    bad = ~np.isfinite(block).all(axis=1)
    if bad.any():
        raise AudioError("nan", f"a sample that is not a number at {(before + int(bad.argmax())) / rate:.3f} s")


def _shortfall(declared: int | None, frames: int, rate: int) -> str:
    if declared is None or declared - frames <= SHORTFALL * declared:
        return ""
    return f"truncated: the file declares {declared / rate:.2f} s and holds {frames / rate:.2f} s"


def _mono_weights(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of all channels; the loudest one alone if another is dead or if they cancel each other."""
    power = np.diag(covariance)
    mean = np.full(len(power), 1 / len(power))
    if power.min() < DEAD_CHANNEL * power.max() or mean @ covariance @ mean < CANCELLED * power.mean():
        return np.eye(len(power))[power.argmax()]
    return mean
