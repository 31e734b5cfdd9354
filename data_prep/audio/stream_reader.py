"""Audio file reader: opens recordings of common formats as streams of sample blocks, without external programs.

soundfile reads the formats of libsndfile; PyAV, whose wheel contains its codecs, reads the others (m4a, aac, webm, wma, and the sound of
films).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import soundfile
from numpy.typing import NDArray

from finetune.storage import input_files

if TYPE_CHECKING:
    from av import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer

EXTENSIONS = (".aac", ".aif", ".aiff", ".flac", ".m4a", ".mp3", ".ogg", ".opus", ".wav", ".webm", ".wma")

FILM_EXTENSIONS = (
    *(".3g2", ".3gp", ".ac3", ".amr", ".ape", ".asf", ".au", ".avi", ".caf", ".f4a", ".f4v", ".flv", ".m2ts", ".m4b", ".m4r", ".m4v"),
    *(".mka", ".mkv", ".mov", ".mp2", ".mp4", ".mpeg", ".mpg", ".mpga", ".mts", ".oga", ".ogv", ".rf64", ".snd", ".spx", ".tta", ".w64"),
    *(".wmv", ".wv"),
)
"""Further endings of files that are made to hold sound: they are recordings even if they cannot be read, which is then reported."""
BLOCK = 1 << 14  # frames: the most that is lost before a defect
RATES = (4_000, 384_000)
"""Hz. A header with another rate is damaged; resampling from it could fill the disk."""
MOST_CHANNELS = 64
OGG_PAGE, OGG_END = 65_307, 4
"""Maximum page size in bytes, and the flag of the last page (RFC 3533)."""
CONTAINERS = "aac,ac3,aiff,amr,ape,asf,au,avi,caf,flac,flv,loas,matroska,webm,mov,mp3,mp4,mpeg,mpegts,ogg,tta,w64,wav,wv"
"""Containers that FFmpeg may detect; no playlists, which would make it open other files or URLs, and no pictures."""
SURE_SECONDS = 0.25
"""Sound that must be decoded before a file with any other ending counts as a recording: FFmpeg finds single frames of MP3 in any bytes."""
UNKNOWN_LENGTH = 2**62
"""Frames: libsndfile reports the largest integer for a FLAC file that was written to a pipe."""
WITHOUT_HEADER = ("aac", "loas")
"""FFmpeg's names for raw AAC."""

FAULTS = 10
"""Damaged packets that are skipped before the first good one."""

Samples = NDArray[np.float32]


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
    note: str = ""
    """Which sound of the file is read, if it has several."""


DECODE_ERRORS: tuple[type[Exception], ...] = (OSError, RuntimeError, ValueError, EOFError, LookupError)
"""soundfile's LibsndfileError is a RuntimeError; most of PyAV's errors derive from one of these."""


def format_error(error: Exception) -> str:
    """The message of a decoder's error, without codes and names."""
    return getattr(error, "strerror", None) or str(error)


def open_stream(path: Path) -> Stream:
    """Open a recording. Raises `AudioError` (`unreadable`); reading the blocks may raise `DECODE_ERRORS`."""
    _require_content(path)
    try:
        info = soundfile.info(os.fsencode(path))
    except soundfile.LibsndfileError as first:
        return _require_plausible(_open_with_av(path, first.error_string))
    declared = _read_declared_frames(path, info)
    return _require_plausible(Stream(info.samplerate, info.channels, declared, _read_soundfile_blocks(path), _ends_midway(path, info)))


def holds_sound(path: Path) -> bool:
    """Whether a file of any name can be decoded as sound."""
    try:
        stream = open_stream(path)
        decoded = 0
        for block in stream.blocks:
            decoded += len(block)
            if decoded >= SURE_SECONDS * stream.rate or stream.faults:
                break
    except AudioError:
        return False
    except DECODE_ERRORS:
        return False
    return not stream.faults and decoded >= min(SURE_SECONDS * stream.rate, stream.declared or SURE_SECONDS * stream.rate) > 0


def _require_content(path: Path) -> None:
    try:
        with input_files.open_file(path) as file:
            if not file.read(1):
                raise AudioError("unreadable", "the file is empty: 0 bytes")
    except OSError as error:
        raise AudioError("unreadable", f"cannot be read: {format_error(error)}") from error


def _require_plausible(stream: Stream) -> Stream:
    least, most = RATES
    if not least <= stream.rate <= most:
        raise AudioError("unreadable", f"the header says {stream.rate} Hz; {least} to {most} Hz are read")
    if stream.channels > MOST_CHANNELS:
        raise AudioError("unreadable", f"the header says {stream.channels} channels; at most {MOST_CHANNELS} are read")
    return stream


class _ForwardSoundFile(soundfile.SoundFile):
    """Not seekable: soundfile would seek after each read, restart decoders with history (MP3, Opus), and damage every block."""

    def seekable(self) -> bool:
        return False


def _read_soundfile_blocks(path: Path) -> Iterator[Samples]:
    with _ForwardSoundFile(os.fsencode(path)) as file:
        while len(block := file.read(BLOCK, dtype="float32", always_2d=True)):
            yield block


def _open_with_av(path: Path, first: str) -> Stream:
    import av

    faults: list[int] = []
    try:
        container = av.open(str(path.absolute()), options={"format_whitelist": CONTAINERS})
        track = next((stream for stream in container.streams.audio if stream.codec_context), None)  # None: unknown codec
        frames = _decode_frames(container, track, faults) if track else iter(())
        frame = next(frames, None)
    except (*DECODE_ERRORS, av.error.FFmpegError) as error:
        raise AudioError("unreadable", f"soundfile: {first}; PyAV: {format_error(error)}") from error
    if track is None or frame is None:  # a file name like a.flac is enough for FFmpeg to detect a stream in garbage
        container.close()
        raise AudioError("unreadable", f"soundfile: {first}; PyAV: no audio stream that can be decoded")
    rate = frame.sample_rate  # of the decoded audio; AAC containers may declare half of it
    seconds = _read_declared_seconds(container, track)
    declared = None if seconds is None else round(seconds * rate)
    note = _describe_streams(container)
    return Stream(rate, frame.layout.nb_channels, declared, _convert_av_frames(container, frame, frames), faults=faults, note=note)


def _describe_streams(container: InputContainer) -> str:
    """A note on a file with several audio streams, such as languages of a film; empty for one."""
    streams = container.streams.audio
    names = [stream.metadata.get("language") or stream.metadata.get("title") or stream.name for stream in streams]
    return f"{len(names)} audio streams ({', '.join(f'{name:.20}' for name in names[:6])}); the first is read" if len(names) > 1 else ""


def _decode_frames(container: InputContainer, track: AudioStream, faults: list[int]) -> Iterator[AudioFrame]:
    """Yield decoded frames from the start of the recording, without encoder delay. FFmpeg skips the delay if the container declares it.

    Raw AAC and WMA do not declare it: their first frame contains no audio, because these codecs overlap two frames. FFmpeg would skip two
    frames of WMA, of which the second may contain audio.
    """
    from av.codec.context import Flags2

    undeclared = container.format.name in WITHOUT_HEADER or track.codec_context.name in ("wmav1", "wmav2")
    if undeclared:
        track.codec_context.flags2 |= Flags2.skip_manual
    return itertools.islice(_decode_packets(container, track, faults), 1 if undeclared else 0, None)


def _decode_packets(container: InputContainer, track: AudioStream, faults: list[int]) -> Iterator[AudioFrame]:
    """Yield all frames except those of damaged packets, recorded in `faults`; raises if most packets are damaged."""
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


def _read_declared_seconds(container: InputContainer, track: AudioStream) -> float | None:
    if container.format.name in WITHOUT_HEADER:  # the duration is estimated from the bit rate
        return None
    if track.duration is not None and track.time_base is not None:
        return float(track.duration * track.time_base)
    alone = len(container.streams) == 1  # Matroska declares the duration of its longest stream
    return container.duration / 1e6 if container.duration and alone else None


def _convert_av_frames(container: InputContainer, first: AudioFrame, others: Iterator[AudioFrame]) -> Iterator[Samples]:
    import av

    planar = av.AudioResampler(format="fltp")  # converts only the sample format; a change of rate or channels is an error
    try:
        with container:
            for frame in itertools.chain([first], others):
                for plain in planar.resample(frame):
                    yield np.ascontiguousarray(plain.to_ndarray().T)
    except av.error.FFmpegError as error:
        raise RuntimeError(format_error(error)) from error


def _read_declared_frames(path: Path, info: Any) -> int | None:
    """Frames by the header. libsndfile silently corrects truncated WAV and AIFF files, so their headers are read here."""
    if info.format in ("WAV", "WAVEX", "RF64"):
        return _read_wav_frames(path)
    if info.format == "AIFF":
        return _read_aiff_frames(path)
    return info.frames if info.frames < UNKNOWN_LENGTH else None


def _read_wav_frames(path: Path) -> int | None:
    """None if the sizes were never filled in, as in files written to a pipe, or do not fit into 32 bits."""
    frame_bytes = 0
    for name, size, body in _read_chunks(path, b"RIFF", "little"):
        if name == b"fmt ":
            frame_bytes = int.from_bytes(body[12:14], "little")
        elif name == b"data":
            return None if size in (0, 0xFFFFFFFF) or not frame_bytes else size // frame_bytes
    return None


def _read_aiff_frames(path: Path) -> int | None:
    return next((int.from_bytes(body[2:6], "big") for name, _, body in _read_chunks(path, b"FORM", "big") if name == b"COMM"), None)


def _read_chunks(path: Path, magic: bytes, order: Literal["little", "big"]) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield (name, size, first bytes) of each chunk of an IFF or RIFF file."""
    with input_files.open_file(path) as file:
        if file.read(4) != magic:
            return
        file.seek(12)
        while len(head := file.read(8)) == 8:
            size, start = int.from_bytes(head[4:], order), file.tell()
            yield head[:4], size, file.read(min(size, 16))
            file.seek(start + size + size % 2)


def _ends_midway(path: Path, info: Any) -> bool:
    """Whether an Ogg file lacks its end-of-stream page; libsndfile takes the last existing page for the end."""
    if info.format != "OGG":
        return False
    with input_files.open_file(path) as file:
        file.seek(max(0, path.stat().st_size - 2 * OGG_PAGE))
        tail = file.read()
    page = tail[tail.rfind(b"OggS") :]
    lengths = page[27 : 27 + page[26]] if len(page) > 26 else b""
    whole = bool(lengths) and len(page) >= 27 + len(lengths) + sum(lengths)
    return not (whole and page[5] & OGG_END)
