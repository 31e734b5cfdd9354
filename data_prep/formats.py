"""Open a recording of any common format as blocks of samples, without an external program.

soundfile reads what libsndfile knows; PyAV, whose wheel carries its codecs, reads the rest (m4a, aac, webm, wma).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from av import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer

EXTENSIONS = (".aac", ".aif", ".aiff", ".flac", ".m4a", ".mp3", ".ogg", ".opus", ".wav", ".webm", ".wma")

BLOCK = 1 << 14  # frames: what is lost in front of a defect is at most this
RATES = (4_000, 384_000)
"""Hz. A header that claims another rate is damaged, and resampling by it would fill the disk."""
MOST_CHANNELS = 64
OGG_PAGE, OGG_END = 65_307, 4
"""Largest page in bytes, and the flag of the last one (RFC 3533)."""
CONTAINERS = "aac,aiff,asf,flac,loas,matroska,webm,mov,mp3,mp4,ogg,wav"
"""What FFmpeg may take a file for: no playlist, which would make it open other files, or addresses."""
UNKNOWN_LENGTH = 2**62
"""Frames: libsndfile gives the largest number that there is for a FLAC file that was written to a pipe."""
WITHOUT_HEADER = ("aac", "loas")
"""FFmpeg's names for raw AAC."""

FAULTS = 10
"""Damaged packets that may be left out before any is good."""

Samples = NDArray[np.float32]


class AudioError(Exception):
    """A recording that cannot be used. `reason` is one word for the tables, `detail` says what was found."""

    def __init__(self, reason: str, detail: str, seconds: float = 0.0) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail, self.seconds = reason, detail, seconds


@dataclass(frozen=True)
class Stream:
    """An open recording."""

    rate: int
    channels: int
    declared: int | None
    """Frames that the file says it has; None if it does not say, or only guesses."""
    blocks: Iterator[Samples]
    """[frames, channels] each."""
    ends_midway: bool = False
    """The file stops before its stream does, and how much is missing is not known."""
    faults: list[int] = field(default_factory=list)
    """Frames decoded before each piece that could not be and was left out; grows while the blocks are read."""


DECODE_ERRORS: tuple[type[Exception], ...] = (OSError, RuntimeError, ValueError, EOFError, LookupError)
"""soundfile's LibsndfileError is a RuntimeError; most of PyAV's errors derive from one of these."""


def in_words(error: Exception) -> str:
    """A decoder's error without the codes and names around it."""
    return getattr(error, "strerror", None) or str(error)


def open_stream(path: Path) -> Stream:
    """Raises `AudioError` (`unreadable`); the blocks may raise `DECODE_ERRORS`."""
    import soundfile

    _require_content(path)
    try:
        info = soundfile.info(os.fsencode(path))
    except soundfile.LibsndfileError as first:
        return _plausible(_open_with_av(path, first.error_string))
    declared = _declared_frames(path, info)
    return _plausible(Stream(info.samplerate, info.channels, declared, _soundfile_blocks(path), _ends_midway(path, info)))


def _require_content(path: Path) -> None:
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise AudioError("unreadable", "there is nothing in it: 0 bytes")
    except OSError as error:
        raise AudioError("unreadable", f"it cannot be read: {in_words(error)}") from error


def _plausible(stream: Stream) -> Stream:
    least, most = RATES
    if not least <= stream.rate <= most:
        raise AudioError("unreadable", f"the header says {stream.rate} Hz; {least} to {most} Hz are read")
    if stream.channels > MOST_CHANNELS:
        raise AudioError("unreadable", f"the header says {stream.channels} channels; at most {MOST_CHANNELS} are read")
    return stream


def _soundfile_blocks(path: Path) -> Iterator[Samples]:
    import soundfile

    class Forward(soundfile.SoundFile):
        """soundfile seeks after each read if it can, and a decoder that looks back (MP3, Opus) then starts anew: a fault at each block."""

        def seekable(self) -> bool:
            return False

    with Forward(os.fsencode(path)) as file:
        while len(block := file.read(BLOCK, dtype="float32", always_2d=True)):
            yield block


def _open_with_av(path: Path, first: str) -> Stream:
    import av

    faults: list[int] = []
    try:
        container = av.open(str(path.absolute()), options={"format_whitelist": CONTAINERS})
        track = next((stream for stream in container.streams.audio if stream.codec_context), None)  # none: an unknown codec
        frames = _frames(container, track, faults) if track else iter(())
        frame = next(frames, None)
    except (*DECODE_ERRORS, av.error.FFmpegError) as error:
        raise AudioError("unreadable", f"soundfile: {first}; PyAV: {in_words(error)}") from error
    if track is None or frame is None:  # a name like a.flac is enough for FFmpeg to see a stream in garbage
        container.close()
        raise AudioError("unreadable", f"soundfile: {first}; PyAV: no audio stream that can be decoded")
    rate = frame.sample_rate  # of the decoded sound; AAC's container may name half of it
    seconds = _declared_seconds(container, track)
    declared = None if seconds is None else round(seconds * rate)
    return Stream(rate, frame.layout.nb_channels, declared, _av_blocks(container, frame, frames), faults=faults)


def _frames(container: InputContainer, track: AudioStream, faults: list[int]) -> Iterator[AudioFrame]:
    """Decoded frames from the start of the recording. What the encoder put before it, FFmpeg leaves out where the container says so.

    Two formats do not say. The first frame of each is no sound, since these codecs need two frames for one. FFmpeg leaves out two of
    WMA, of which the second may be sound.
    """
    from av.codec.context import Flags2

    untold = container.format.name in WITHOUT_HEADER or track.codec_context.name in ("wmav1", "wmav2")
    if untold:
        track.codec_context.flags2 |= Flags2.skip_manual
    return itertools.islice(_decodable(container, track, faults), 1 if untold else 0, None)


def _decodable(container: InputContainer, track: AudioStream, faults: list[int]) -> Iterator[AudioFrame]:
    """All frames but those of damaged packets, whose places go to `faults`; gives up where most are damaged, for that is no sound."""
    import av

    frames = decoded = 0
    for packet in container.demux(track):
        try:
            good = packet.decode()
        except av.error.InvalidDataError:
            faults.append(frames)
            if len(faults) > decoded + FAULTS:
                raise
            continue
        for frame in good:
            frames, decoded = frames + frame.samples, decoded + 1
            yield frame


def _declared_seconds(container: InputContainer, track: AudioStream) -> float | None:
    if container.format.name in WITHOUT_HEADER:  # the length is guessed from the bit rate
        return None
    if track.duration is not None and track.time_base is not None:
        return float(track.duration * track.time_base)
    alone = len(container.streams) == 1  # Matroska's length is that of the longest stream
    return container.duration / 1e6 if container.duration and alone else None


def _av_blocks(container: InputContainer, first: AudioFrame, others: Iterator[AudioFrame]) -> Iterator[Samples]:
    import av

    planar = av.AudioResampler(format="fltp")  # only the sample format: rate and channels stay, and a change of them is an error
    try:
        with container:
            for frame in itertools.chain([first], others):
                for plain in planar.resample(frame):
                    yield np.ascontiguousarray(plain.to_ndarray().T)
    except av.error.FFmpegError as error:
        raise RuntimeError(in_words(error)) from error


def _declared_frames(path: Path, info: Any) -> int | None:
    """By the header. libsndfile repairs the size of a truncated WAV or AIFF file silently, so these are read here."""
    if info.format in ("WAV", "WAVEX", "RF64"):
        return _wav_frames(path)
    if info.format == "AIFF":
        return _aiff_frames(path)
    return info.frames if info.frames < UNKNOWN_LENGTH else None


def _wav_frames(path: Path) -> int | None:
    """None if the sizes were never filled in, as when it was written to a pipe, or do not fit into 32 bits."""
    frame_bytes = 0
    for name, size, body in _chunks(path, b"RIFF", "little"):
        if name == b"fmt ":
            frame_bytes = int.from_bytes(body[12:14], "little")
        elif name == b"data":
            return None if size in (0, 0xFFFFFFFF) or not frame_bytes else size // frame_bytes
    return None


def _aiff_frames(path: Path) -> int | None:
    return next((int.from_bytes(body[2:6], "big") for name, _, body in _chunks(path, b"FORM", "big") if name == b"COMM"), None)


def _chunks(path: Path, magic: bytes, order: Literal["little", "big"]) -> Iterator[tuple[bytes, int, bytes]]:
    """Name, size and first bytes of each part of a file in the Interchange File Format or its little-endian kin."""
    with path.open("rb") as file:
        if file.read(4) != magic:
            return
        file.seek(12)
        while len(head := file.read(8)) == 8:
            size, start = int.from_bytes(head[4:], order), file.tell()
            yield head[:4], size, file.read(min(size, 16))
            file.seek(start + size + size % 2)


def _ends_midway(path: Path, info: Any) -> bool:
    """Whether an Ogg file stops before the page that ends its stream: libsndfile takes the last page that is there for the end."""
    if info.format != "OGG":
        return False
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2 * OGG_PAGE))
        tail = file.read()
    page = tail[tail.rfind(b"OggS") :]
    lengths = page[27 : 27 + page[26]] if len(page) > 26 else b""
    whole = bool(lengths) and len(page) >= 27 + len(lengths) + sum(lengths)
    return not (whole and page[5] & OGG_END)
