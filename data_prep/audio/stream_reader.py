"""Audio file reader: opens recordings of common formats as streams of sample blocks, without external programs.

soundfile reads PCM, FLAC and MP3; PyAV, whose wheel contains its codecs, reads the others (Ogg, m4a, aac, webm, wma, and the sound of
films), whose packets may have times. A file that several were joined into is read to its end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import soundfile

from overtone.data_prep.audio import joined_files
from overtone.data_prep.audio.av_reader import open_with_av
from overtone.data_prep.audio.decoded_stream import DECODE_ERRORS, AudioError, Samples, Stream, format_error
from overtone.data_prep.audio.file_view import FilePart, FileView
from overtone.data_prep.audio.part_joining import join_parts
from overtone.finetune.storage import input_files

__all__ = ["DECODE_ERRORS", "AudioError", "Samples", "Stream", "format_error"]

EXTENSIONS = (".aac", ".aif", ".aiff", ".flac", ".m4a", ".mp3", ".ogg", ".opus", ".wav", ".webm", ".wma")

FILM_EXTENSIONS = (
    *(".3g2", ".3gp", ".ac3", ".amr", ".ape", ".asf", ".au", ".avi", ".caf", ".f4a", ".f4v", ".flv", ".m2ts", ".m4b", ".m4r", ".m4v"),
    *(".mka", ".mkv", ".mov", ".mp2", ".mp4", ".mpeg", ".mpg", ".mpga", ".mts", ".oga", ".ogv", ".rf64", ".snd", ".spx", ".tta", ".w64"),
    *(".wmv", ".wv"),
)
"""Further extensions of sound files: these files are recordings even if they cannot be read, which is then reported."""
BLOCK = 1 << 14  # frames: the most that is lost before a defect
RATES = (4_000, 384_000)
"""Hz. A header with another rate is damaged; resampling from it could fill the disk."""
MOST_CHANNELS = 64
SURE_SECONDS = 0.25
"""Sound that must be decoded before a file with any other ending counts as a recording: FFmpeg finds single frames of MP3 in any bytes."""
UNKNOWN_LENGTH = 2**62
"""Number of frames from which the length is unknown: libsndfile reports the largest integer for a FLAC file that was written to a pipe."""
WAV = ("WAV", "WAVEX", "RF64")
UNDESCRIBED, LEAST_UNDESCRIBED = 0.01, 4096
"""Share of a file after its end that is mentioned, and its bytes: it may be sound of a recorder that did not finish the header, or of
another file."""


class _FileInfo(Protocol):
    """Properties of a file, as soundfile reports them."""

    samplerate: int
    channels: int
    frames: int
    format: str
    subtype: str


def ignore_progress() -> None:
    """Do nothing: the `alive` of callers that report no progress while a file is examined."""


def open_stream(path: Path, alive: Callable[[], None] = ignore_progress) -> Stream:
    """Open a recording. Raises `AudioError` (`unreadable`); reading the blocks may raise it too, and `DECODE_ERRORS`.

    `alive` is called now and then while a long file is searched for others that were joined to it.
    """
    whole = _require_content(path)
    try:
        parts = joined_files.find_parts(whole, alive)
    except OSError as error:
        raise AudioError("unreadable", f"cannot be read: {format_error(error)}") from error
    stream = _open_part(parts[0]) if len(parts) == 1 else join_parts(parts, _open_part)
    stream.notes.extend(_describe_unread(parts[-1].unread, whole.stop))
    return stream


def is_joined(path: Path) -> bool:
    """Return whether a file is several joined files, of which other programs read the first only. Raises `AudioError` (`unreadable`)."""
    return len(joined_files.find_parts(_require_content(path), ignore_progress)) > 1


def holds_sound(path: Path) -> bool:
    """Return whether a file of any name can be decoded as sound."""
    try:
        stream = _open_part(_require_content(path))
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


def _require_content(path: Path) -> FilePart:
    try:
        with input_files.open_file(path) as file:
            size = file.seek(0, os.SEEK_END)
    except OSError as error:
        raise AudioError("unreadable", f"cannot be read: {format_error(error)}") from error
    if not size:
        raise AudioError("unreadable", "the file is empty: 0 bytes")
    return FilePart(path, 0, size)


def _open_part(part: FilePart) -> Stream:
    if _is_timed_ogg(part):
        return _require_plausible(open_with_av(part, ""))
    try:
        with _open_source(part) as source:
            info: _FileInfo = soundfile.info(source)
    except soundfile.LibsndfileError as first:
        return _require_plausible(open_with_av(part, first.error_string))
    if info.subtype in ("MPEG_LAYER_I", "MPEG_LAYER_II"):  # libsndfile estimates their length, and stops there
        return _require_plausible(open_with_av(part, ""))
    if info.format in WAV and not info.frames:  # a recorder that stopped without a length; libsndfile takes 0 for it
        with contextlib.suppress(AudioError):
            return _require_plausible(open_with_av(part, ""))
    declared, notes = _read_declared_frames(part, info)
    blocks = _read_flac_blocks(part, info.frames, notes) if info.format == "FLAC" else _read_soundfile_blocks(part)
    is_cut = info.format == "OGG" and not part.has_end
    return _require_plausible(Stream(info.samplerate, info.channels, declared, blocks, is_cut, notes=notes))


def _is_timed_ogg(part: FilePart) -> bool:
    """Return whether this is Ogg, whose page times libsndfile ignores. Vorbis is left to it: FFmpeg shifts the start of some by a short
    block."""
    with part.open() as file:
        file.seek(joined_files.skip_id3(file, 0))
        head = file.read(joined_files.OGG_PAGE + 8)
        return head[:4] == b"OggS" and not head.endswith(b"\x01vorbis")


def _require_plausible(stream: Stream) -> Stream:
    least, most = RATES
    if not least <= stream.rate <= most:
        raise AudioError("unreadable", f"the header says {stream.rate} Hz; {least} to {most} Hz are read")
    if stream.channels > MOST_CHANNELS:
        raise AudioError("unreadable", f"the header says {stream.channels} channels; at most {MOST_CHANNELS} are read")
    return stream


class _ForwardSoundFile(soundfile.SoundFile):
    """A sound file that is not seekable: soundfile would otherwise seek after each read, restart decoders with history (MP3), and damage
    every block."""

    def seekable(self) -> bool:
        return False


@contextlib.contextmanager
def _open_source(part: FilePart) -> Iterator[bytes | FileView]:
    """Yield the input for soundfile: the file's name, which is faster, or a view of the part."""
    if part.is_whole:
        yield os.fsencode(part.path)
    else:
        with part.open() as view:
            yield view


def _read_soundfile_blocks(part: FilePart) -> Iterator[Samples]:
    with _open_source(part) as source, _ForwardSoundFile(source) as file:
        while len(block := file.read(BLOCK, dtype="float32", always_2d=True)):
            yield block


def _read_flac_blocks(part: FilePart, frames: int, notes: list[str]) -> Iterator[Samples]:
    """Yield no more than the declared `frames`: a tag after them would be an error, and lose the whole last block. Appends to `notes`."""
    with part.open() as view, _ForwardSoundFile(view) as file:
        while len(block := file.read(min(BLOCK, frames), dtype="float32", always_2d=True)):
            frames -= len(block)
            yield block
        if not frames:
            notes += _describe_unread(part.stop - part.start - view.tell(), part.stop - part.start)


def _describe_unread(unread: int, size: int) -> list[str]:
    """Return a note on many bytes after the end of the sound."""
    if unread <= max(LEAST_UNDESCRIBED, UNDESCRIBED * size):
        return []
    return [f"{unread:,} bytes after the end of its sound are not read: perhaps a file of another format was joined to it"]


def _read_declared_frames(part: FilePart, info: _FileInfo) -> tuple[int | None, list[str]]:
    """Return the frames by the header, and a note on what the header leaves out. libsndfile silently corrects truncated WAV and AIFF files,
    so their headers are read here."""
    if info.format in WAV:
        header = _read_header(part, (b"RIFF", b"RF64", b"RIFX"), "little")
    elif info.format == "AIFF":
        header = _read_header(part, (b"FORM",), "big")
    else:
        return info.frames if info.frames < UNKNOWN_LENGTH else None, []
    rest = part.stop - part.start - header.stop
    if header.frames and header.data and rest > max(LEAST_UNDESCRIBED, UNDESCRIBED * header.data):
        seconds = header.frames / info.samplerate
        return header.frames, [f"{rest:,} bytes after the {seconds:.2f} s that the header describes are not read"]
    return header.frames, []


class _Header(NamedTuple):
    """Header of a WAV or AIFF file. `frames`: None if the size was never filled in, as in files written to a pipe, or does not fit into 32
    bits; `data`: bytes of samples; `stop`: the byte after the last chunk."""

    frames: int | None
    data: int
    stop: int


def _read_header(part: FilePart, magic: tuple[bytes, ...], order: Literal["little", "big"]) -> _Header:
    frame_bytes = data = stop = 0
    frames: int | None = None
    for chunk in _read_chunks(part, magic, order):
        if chunk.start + chunk.size > part.stop - part.start and chunk.name not in (b"data", b"SSND"):
            break  # other bytes, such as the first of a FLAC file
        stop = chunk.start + chunk.size + chunk.size % 2
        if chunk.name == b"fmt ":
            frame_bytes = int.from_bytes(chunk.body[12:14], "little")
        elif chunk.name == b"COMM":
            frames = int.from_bytes(chunk.body[2:6], "big")
        elif chunk.name == b"data":
            if chunk.size in (0, 0xFFFFFFFF) or not frame_bytes:
                return _Header(None, 0, part.stop - part.start)
            frames, data = chunk.size // frame_bytes, chunk.size
        elif chunk.name == b"SSND":
            data = chunk.size
    return _Header(frames, data, stop)


class _Chunk(NamedTuple):
    """Chunk of an IFF or RIFF file; `body`: its first bytes."""

    name: bytes
    size: int
    start: int
    body: bytes


def _read_chunks(part: FilePart, magic: tuple[bytes, ...], order: Literal["little", "big"]) -> Iterator[_Chunk]:
    with part.open() as file:
        if file.read(4) not in magic:
            return
        file.seek(12)
        while len(head := file.read(8)) == 8 and head[:4].isascii() and head[:4].decode().isprintable():
            size, start = int.from_bytes(head[4:], order), file.tell()
            yield _Chunk(head[:4], size, start, file.read(min(size, 16)))
            file.seek(start + size + size % 2)
