"""Open a recording of any common format as blocks of samples, without an external program.

soundfile reads what libsndfile knows; PyAV, whose wheel carries its codecs, reads the rest (m4a, aac, webm, wma).
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

EXTENSIONS = (".aac", ".aif", ".aiff", ".flac", ".m4a", ".mp3", ".ogg", ".opus", ".wav", ".webm", ".wma")

BLOCK = 1 << 14  # frames: what is lost in front of a defect is at most this
RATES = (4_000, 384_000)
"""Hz. A header that claims another rate is damaged, and resampling by it would fill the disk."""
MOST_CHANNELS = 64
CONTAINERS = "aac,aiff,asf,flac,matroska,webm,mov,mp3,mp4,ogg,wav"
"""What FFmpeg may take a file for: no playlist, which would make it open other files, or addresses."""

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


DECODE_ERRORS: tuple[type[Exception], ...] = (OSError, RuntimeError, ValueError, EOFError, LookupError)
"""soundfile's LibsndfileError is a RuntimeError; PyAV's errors derive from each of the others."""


def open_stream(path: Path) -> Stream:
    """Raises `AudioError` (`unreadable`); the blocks may raise `DECODE_ERRORS`."""
    import soundfile

    _require_content(path)
    try:
        info = soundfile.info(os.fsencode(path))
    except soundfile.LibsndfileError as first:
        return _plausible(_open_with_av(path, first.error_string))
    declared = _riff_frames(path) if info.format in ("WAV", "WAVEX", "RF64") else info.frames
    return _plausible(Stream(info.samplerate, info.channels, declared, _soundfile_blocks(path)))


def _require_content(path: Path) -> None:
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise AudioError("unreadable", "there is nothing in it: 0 bytes")
    except OSError as error:
        raise AudioError("unreadable", f"it cannot be read: {error.strerror}") from error


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

    try:
        container = av.open(str(path.absolute()), options={"format_whitelist": CONTAINERS})
    except DECODE_ERRORS as error:
        raise AudioError("unreadable", f"soundfile: {first}; PyAV: {getattr(error, 'strerror', None) or error}") from error
    stream = next(iter(container.streams.audio), None)
    if stream is None or not stream.rate or not stream.channels:  # a name like a.flac is enough for FFmpeg to see a stream in garbage
        container.close()
        raise AudioError("unreadable", f"soundfile: {first}; PyAV: no audio stream that can be decoded")
    guessed = container.format.name == "aac" or stream.duration is None or stream.time_base is None  # a raw ADTS file has no header
    declared = None if guessed else round(stream.duration * stream.time_base * stream.rate)
    return Stream(stream.rate, stream.channels, declared, _av_blocks(container))


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
