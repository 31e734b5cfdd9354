"""The frames of MP3 files (and of layers I and II), without decoding them: where joined files begin, and how many frames each of them has.

Decoders read an MP3 file as one stream. libmpg123 stops after as many frames as the header (Xing, Info) of the first file counts; without
one, libsndfile estimates the number from the size of the file, and stops there. So each part gets a correct header.

Sources: ISO/IEC 11172-3 and 13818-3 (frames), https://id3.org (tags), http://gabriel.mp3-tech.org/mp3infotag.html (Xing and LAME).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from overtone.data_prep.audio.file_view import FilePart, FileView

CHAIN = 4
"""Number of consecutive headers that identify a stream; a single one occurs in any bytes by chance."""
UNCOUNTED = 2
"""Error, in frames, of the counts that encoders write."""
CHUNK, BLOCK = 1 << 20, 1 << 16
START = re.compile(rb"\xff[\xe0-\xff]|ID3")
RESYNC = 512
"""Bytes between two frames after which a decoder is started anew: libmpg123 gives up after 1024."""
TAG_ID3V1 = 128
HEADER_BYTES = 4
LAYER_3 = 3
KILOBITS = {
    (1, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Bit rates by version (2 is also MPEG 2.5) and layer."""
RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
"""Sample rates in Hz, by the two bits of the version."""
ALIVE_FRAMES = 20_000


class FrameFormat(NamedTuple):
    """Properties of a frame that do not change within a stream."""

    version: int
    """Two bits: 3 is MPEG 1, 2 is MPEG 2, 0 is MPEG 2.5."""
    layer: int
    rate: int
    is_mono: bool

    @property
    def samples(self) -> int:
        """Samples of one frame."""
        return {1: 384, 2: 1152, 3: 1152 if self.version == 3 else 576}[self.layer]

    @property
    def side_bytes(self) -> int:
        """Bytes between the frame's header and its data, where the header of a file begins."""
        return (17 if self.is_mono else 32) if self.version == 3 else (9 if self.is_mono else 17)


NO_FRAME = (FrameFormat(0, 0, 0, False), 0)


@dataclass(frozen=True)
class Mp3Part:
    """A part of a file that was a file of its own."""

    format: FrameFormat
    start: int
    """Byte at which it begins, with the header if there is one."""
    stop: int
    frames: int
    """Number of frames, without the header's."""
    first: int
    """Byte at which the first of these frames begins."""
    counted: int = 0
    """Number of frames that the header declares; 0: unknown."""
    counted_stop: int = 0
    """Byte after that many frames, if there are more."""


def find_parts(part: FilePart, alive: Callable[[], None]) -> list[FilePart]:
    """Return the joined files of an MP3 file, each with a header that counts its frames; empty if it is not an MP3 file. `alive` is called
    now and then."""
    with part.open() as file:
        walk = _Walk(file, part.stop, alive)
        found = [piece for whole in walk.list_parts() for piece in _divide_at_count(whole)]
        unread = part.stop - walk.skip_tags(found[-1].stop) if found else 0
    whole = len(found) == 1 and not unread  # libmpg123 warns about other bytes
    return [replace(_make_file(piece, part, whole), unread=unread) for piece in found]


def is_mp3(part: FilePart) -> bool:
    """Return whether the file begins with MP3 frames, after tags."""
    with part.open() as file:
        walk = _Walk(file, part.stop, lambda: None)
        return walk.follow_chain(walk.skip_tags(0), CHAIN) is not None


def is_cut_mp3(part: FilePart) -> bool:
    """Return whether MP3 frames begin after a few other bytes, as in a piece of a broadcast. Use it for files that nothing else reads."""
    with part.open() as file:
        walk = _Walk(file, part.stop, lambda: None)
        begin = walk.skip_tags(0)
        file.seek(begin)
        block = file.read(BLOCK)
        places = [begin + match.start() for match in START.finditer(block)]
        return any(walk.follow_chain(place, 2 * CHAIN, may_end=False) is not None for place in places)


def _divide_at_count(part: Mp3Part) -> list[Mp3Part]:
    """Return the part, and the frames after those that its header counts: they are of another file without a header."""
    if not part.counted or part.frames - part.counted <= UNCOUNTED:
        return [part]
    rest = replace(part, start=part.counted_stop, first=part.counted_stop, frames=part.frames - part.counted, counted=0, counted_stop=0)
    return [replace(part, stop=part.counted_stop, frames=part.counted), rest]


def _make_file(piece: Mp3Part, part: FilePart, is_only: bool) -> FilePart:
    if piece.counted or piece.format.layer != LAYER_3:
        return part if is_only else FilePart(part.path, piece.start, piece.stop, False)
    return FilePart(part.path, piece.first, piece.stop, False, _make_header(piece))


def _make_header(piece: Mp3Part) -> bytes:
    """Return a frame without sound that counts the frames of the part."""
    version, _, rate, is_mono = piece.format
    second = 0xE0 | version << 3 | 0b011  # layer III, without a checksum
    third = 14 << 4 | RATES[version].index(rate) << 2
    head = bytes([0xFF, second, third, 0xC0 if is_mono else 0])
    body = head + bytes(piece.format.side_bytes) + b"Info" + (1).to_bytes(4, "big") + piece.frames.to_bytes(4, "big")
    return body.ljust(_measure_frame(head)[1], b"\0")


def _measure_frame(head: bytes) -> tuple[FrameFormat, int]:
    """Return the format and the bytes of a frame; 0 bytes if this is not the header of a frame."""
    version, layer, kilobits, rate = head[1] >> 3 & 3, 4 - (head[1] >> 1 & 3), head[2] >> 4, head[2] >> 2 & 3
    if head[0] != 0xFF or head[1] >> 5 != 7 or version == 1 or layer == 4 or kilobits in (0, 15) or rate == 3 or head[3] & 3 == 2:
        return NO_FRAME
    found = FrameFormat(version, layer, RATES[version][rate], head[3] >> 6 == 3)
    bits = KILOBITS[1 if version == 3 else 2, layer][kilobits] * 1000
    slot = 4 if layer == 1 else 1
    return found, (found.samples // 8 * bits // found.rate // slot + (head[2] >> 1 & 1)) * slot


class _Walk:
    """Reads a file from frame to frame."""

    def __init__(self, file: FileView, size: int, alive: Callable[[], None]) -> None:
        self._file, self._size, self._alive = file, size, alive
        self._chunk, self._base = b"", 0
        self._measured: dict[bytes, tuple[FrameFormat, int]] = {}

    def list_parts(self) -> list[Mp3Part]:
        """Return the parts in their order. A new one begins with a header, after a tag, and where the format changes."""
        parts: list[Mp3Part] = []
        position, after_tag = self.skip_tags(0), True
        current: FrameFormat | None = None
        start = first = counted = counted_stop = frames = 0
        stop = position

        def finish() -> None:
            if current is not None and frames:
                parts.append(
                    Mp3Part(format=current, start=start, stop=stop, frames=frames, first=first, counted=counted, counted_stop=counted_stop)
                )

        number = 0
        while position + HEADER_BYTES <= self._size:
            number += 1
            if number % ALIVE_FRAMES == 0:
                self._alive()
            found, size = self._measure(position)
            is_expected = size and found == current and not after_tag and position + size <= self._size
            if not is_expected and self.follow_chain(position, CHAIN) is None:
                after = self.skip_tags(position)
                if after > position:
                    position, after_tag = after, True
                    continue
                resumed = self.find_frame(position + 1)
                if resumed is None:
                    break
                position, after_tag = resumed, after_tag or resumed - position > RESYNC
                continue
            if position + size > self._size:  # the file ends within this frame
                break
            count = self._read_count(position, found)
            if count is not None or found != current or after_tag:
                finish()
                current, start, first, counted, counted_stop, frames, after_tag = found, position, position, count or 0, 0, 0, False
                if count is not None:
                    first = position + size
                    position = stop = first
                    continue
            frames += 1
            position = stop = position + size
            if frames == counted:
                counted_stop = position
        finish()
        return parts

    def follow_chain(self, position: int, length: int, may_end: bool = True) -> int | None:
        """Return the byte after `length` frames of one format from `position`; if it `may_end`, also after fewer up to the end of the file
        or a tag."""
        first = None
        for number in range(length):
            found, size = self._measure(position)
            if not size or (first or found) != found:
                ends = position >= self._size or self._has_tag(position)
                return position if number and ends and may_end else None
            first = found
            position += size
        return position

    def skip_tags(self, position: int) -> int:
        """Return the byte after all tags (ID3, APE) and zeros from `position`."""
        while True:
            head = self._read(position, BLOCK)
            after = position + (self._measure_tag(position) or len(head) - len(head.lstrip(b"\0")))
            if after == position:
                return min(position, self._size)
            position = after

    def _has_tag(self, position: int) -> bool:
        return self._measure_tag(position) > 0

    def _measure_tag(self, position: int) -> int:
        head = self._read(position, 32)
        if head[:3] == b"ID3" and len(head) >= 10 and all(byte < 128 for byte in head[6:10]):
            size = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]
            return 10 + size + (10 if head[5] & 0x10 else 0)
        if head[:3] == b"TAG":
            return 227 if head[3:4] == b"+" else TAG_ID3V1
        if head[:8] == b"APETAGEX" and len(head) == 32:
            return int.from_bytes(head[12:16], "little") + (32 if head[23] & 0x20 else 0)
        return 0

    def find_frame(self, position: int) -> int | None:
        """Return the next byte at which frames or a tag begin."""
        while position < self._size:
            self._alive()
            block = self._read(position, BLOCK)
            for match in START.finditer(block):
                at = position + match.start()
                if self._has_tag(at) or self.follow_chain(at, CHAIN) is not None:
                    return at
            position += max(1, len(block) - 2)
        return None

    def _read_count(self, position: int, found: FrameFormat) -> int | None:
        """Return the number of frames that the header of a file in this frame declares: 0 if it declares none, None if this is no
        header."""
        if found.layer != LAYER_3:
            return None
        head = self._read(position + HEADER_BYTES + found.side_bytes, 12)
        if head[:4] in (b"Xing", b"Info"):
            return int.from_bytes(head[8:12], "big") if len(head) == 12 and head[7] & 1 else 0
        vbri = self._read(position + HEADER_BYTES + 32, 18)
        return int.from_bytes(vbri[14:18], "big") if vbri[:4] == b"VBRI" else None

    def _measure(self, position: int) -> tuple[FrameFormat, int]:
        head = self._read(position, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            return NO_FRAME
        if (known := self._measured.get(head)) is None:
            known = self._measured[head] = _measure_frame(head)
        return known

    def _read(self, position: int, size: int) -> bytes:
        offset = position - self._base
        if offset < 0 or offset + size > len(self._chunk):
            self._file.seek(position)
            self._chunk, self._base, offset = self._file.read(max(CHUNK, size)), position, 0
        return self._chunk[offset : offset + size]
