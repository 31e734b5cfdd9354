"""The part of the audio reader that uses PyAV: containers whose packets have times (webm, mkv, mp4, ts, flv, Ogg), and formats that
soundfile does not read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from overtone.data_prep.audio import joined_files
from overtone.data_prep.audio.decoded_stream import DECODE_ERRORS, AudioError, Samples, Stream, fit_channels, format_error
from overtone.data_prep.audio.file_view import FilePart
from overtone.data_prep.audio.packet_clock import PacketClock
from overtone.finetune.errors import format_count

if TYPE_CHECKING:
    from av import AudioFrame
    from av.audio.resampler import AudioResampler
    from av.audio.stream import AudioStream
    from av.container import InputContainer

CONTAINERS = "aac,ac3,aiff,amr,ape,asf,au,avi,caf,flac,flv,loas,matroska,webm,mov,mp3,mp4,mpeg,mpegts,ogg,tta,w64,wav,wv"
"""Containers that FFmpeg may detect. Pictures are not among them, nor playlists, which would make it open other files or URLs."""
WITHOUT_HEADER = ("aac", "loas")
"""FFmpeg's names for raw AAC."""
BROADCAST = ("mpegts", "mpeg")
"""Containers whose clock may be set anew. They declare no length: FFmpeg estimates it from the last time."""
TIMED = (*BROADCAST, "matroska,webm", "mov,mp4,m4a,3gp,3g2,mj2", "flv", "ogg", "asf")
"""Containers whose packets have times of their own. FFmpeg counts those of the others, such as AVI's chunks and raw AAC."""
COARSE = ("asf",)
"""Containers whose times say when a packet is sent, exact to some tens of milliseconds."""
COARSE_UNIT = Fraction(1, 20)
ESTIMATED = (*WITHOUT_HEADER, *BROADCAST, "mp3", "ac3", "amr", "avi")
"""Containers whose duration FFmpeg estimates, from the bit rate or the last time; AVI also counts empty packets, which it skips."""
FAULTS = 10
"""Damaged packets that are skipped before the first good one."""
SILENCE = 1 << 14
"""Frames in a block of silence."""


def open_with_av(part: FilePart, first: str) -> Stream:
    """Open a part of a file with FFmpeg. `first`: the message of soundfile's error. Raises `AudioError` (`unreadable`); reading the blocks
    may raise `DECODE_ERRORS`."""
    import av

    faults: list[int] = []
    said = f"soundfile: {first}; PyAV" if first else "PyAV"
    try:
        source = str(part.path.absolute()) if part.is_whole else part.open()
        container = av.open(source, options={"format_whitelist": CONTAINERS})
        track = next((stream for stream in container.streams.audio if stream.codec_context), None)  # None: unknown codec
        if track is None or (frame := next(frames := _decode_frames(container, track, faults), None)) is None:
            container.close()  # a file name like a.flac is enough for FFmpeg to detect a stream in garbage
            raise AudioError("unreadable", f"{said}: no audio stream that can be decoded")
    except (*DECODE_ERRORS, av.error.FFmpegError) as error:
        raise AudioError("unreadable", f"{said}: {format_error(error)}") from error
    rate = frame.sample_rate  # the rate of the decoded audio; AAC containers may declare half of it
    clock = _make_clock(part, container, track, rate)
    lead = clock.place(_find_time(frame), frame.samples) if clock else 0
    seconds = _read_declared_seconds(container, track, frame)
    declared = None if seconds is None else round(seconds * rate) + lead
    notes = _describe_streams(container)
    blocks = _read_blocks(container, itertools.chain([frame], frames), clock, notes)
    return Stream(
        rate=rate,
        channels=frame.layout.nb_channels,
        declared=declared,
        blocks=blocks,
        ends_midway=not part.has_end,
        faults=faults,
        notes=notes,
    )


def _make_clock(part: FilePart, container: InputContainer, track: AudioStream, rate: int) -> PacketClock | None:
    """Return the clock of a container; None if its packets have no times of their own."""
    if container.format.name not in TIMED:
        return None
    unit = COARSE_UNIT if container.format.name in COARSE else Fraction(track.time_base or 1)
    late_start = Fraction(joined_files.read_first_granule(part), rate) if _is_ogg_flac(container, track) else None
    return PacketClock(rate, unit, _find_picture_start(container, track), container.format.name in BROADCAST, late_start=late_start)


def _is_ogg_flac(container: InputContainer, track: AudioStream) -> bool:
    """Return whether FFmpeg counts the first page from 0, even of a broadcast that was recorded from its middle on."""
    return container.format.name == "ogg" and track.codec_context.name == "flac"


def _find_picture_start(container: InputContainer, track: AudioStream) -> Fraction | None:
    """Return the seconds at which the first of the other streams starts. These are films and further sound; covers and subtitles do not
    count."""
    from av.stream import Disposition

    return min(
        (
            other.start_time * other.time_base
            for other in container.streams
            if other is not track
            and other.type in ("video", "audio")
            and not other.disposition & Disposition.attached_pic
            and other.start_time is not None
            and other.time_base is not None
        ),
        default=None,
    )


def _describe_streams(container: InputContainer) -> list[str]:
    """Return a note on a file with several audio streams, such as languages of a film; none for one."""
    streams = container.streams.audio
    names = [stream.metadata.get("language") or stream.metadata.get("title") or stream.name for stream in streams]
    listed = ", ".join(f"{name:.20}" for name in names[:6])
    return [f"{len(names)} audio streams ({listed}); the first is read"] if len(names) > 1 else []


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
        except (av.error.InvalidDataError, av.error.UndefinedError):
            faults.append(frames)
            if len(faults) > decoded + FAULTS:
                raise
            continue
        for frame in good:
            frames, decoded = frames + frame.samples, decoded + 1
            yield frame


def _find_time(frame: AudioFrame) -> Fraction | None:
    """Return the seconds at which a frame is played."""
    return None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base


def _read_declared_seconds(container: InputContainer, track: AudioStream, first: AudioFrame) -> float | None:
    """Return the duration of the track by the header; None if there is none, or only an estimate."""
    if container.format.name in ESTIMATED or _is_ogg_flac(container, track):
        return None
    alone = len(container.streams) == 1
    start = float(max(Fraction(0), _find_time(first) or Fraction(0)))
    if track.duration is not None and track.time_base is not None:
        declared = float(track.duration * track.time_base)
        if container.format.name == "ogg":  # it declares the time of its end, and a recorded broadcast starts late
            return declared - start
        if container.format.name != "asf":
            return declared
        return declared - start if alone else None  # it declares the time at which its longest stream ends
    return container.duration / 1e6 - start if container.duration and alone else None  # Matroska declares the same


def _read_blocks(container: InputContainer, frames: Iterator[AudioFrame], clock: PacketClock | None, notes: list[str]) -> Iterator[Samples]:
    """Yield the frames in the format of the first one, with silence where their times leave gaps. Appends to `notes` at the end."""
    import av

    fitting = None
    try:
        with container:
            for number, frame in enumerate(frames):
                if fitting is None:
                    fitting = _FrameFitting(frame)
                silence = 0
                if clock and number == 0:
                    silence = clock.lead
                elif clock:
                    silence = clock.place(_find_time(frame), frame.samples * clock.rate // frame.sample_rate)
                if silence:
                    yield from fitting.finish()
                    for start in range(0, silence, SILENCE):
                        yield np.zeros((min(SILENCE, silence - start), fitting.channels), np.float32)
                yield from fitting.convert(frame)
            if fitting is not None:
                yield from fitting.finish()
                notes += [*(clock.describe() if clock else []), *fitting.describe()]
    except av.error.FFmpegError as error:
        raise RuntimeError(format_error(error)) from error


class _FrameFitting:
    """Owns FFmpeg's resampler, which converts frames to floats, and those of another rate or layout to the format of the first frame."""

    def __init__(self, first: AudioFrame) -> None:
        self.channels, self._rate = first.layout.nb_channels, first.sample_rate
        self._format = (first.sample_rate, first.layout.name)
        self._resampler = self._make_resampler()
        self._changes: list[str] = []
        self._done = 0

    def _make_resampler(self) -> AudioResampler:
        import av

        return av.AudioResampler(format="fltp", rate=self._rate)

    def convert(self, frame: AudioFrame) -> Iterator[Samples]:
        """Yield [frames, channels] in the format of the first frame."""
        found = (frame.sample_rate, frame.layout.name)
        if found != self._format:
            yield from self.finish()
            self._format = found
            self._changes.append(
                f"{self._done / self._rate:.2f} s to {found[0]} Hz and {format_count(frame.layout.nb_channels, 'channel')}"
            )
        frame.pts = None  # the resampler would fill gaps, too
        yield from self._emit(self._resampler.resample(frame))

    def finish(self) -> Iterator[Samples]:
        """Yield what the resampler holds back. Call it before frames that do not continue the last one."""
        yield from self._emit(self._resampler.resample(None))
        self._resampler = self._make_resampler()

    def _emit(self, frames: list[AudioFrame]) -> Iterator[Samples]:
        for plain in frames:
            self._done += plain.samples
            yield fit_channels(plain.to_ndarray().T, self.channels)

    def describe(self) -> list[str]:
        """Return the changes of the format, for the user."""
        if not self._changes:
            return []
        kept = f"{self._rate} Hz and {format_count(self.channels, 'channel')}"
        more = f" and {len(self._changes) - 3} more" if len(self._changes) > 3 else ""
        return [f"the format changes at {', at '.join(self._changes[:3])}{more}: converted to {kept}"]
