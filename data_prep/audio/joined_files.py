"""Finds the files that were joined into one (`cat a.flac b.flac`): decoders stop at the end of the first one, or read the header of the
next one as sound.

Chained Ogg is valid (RFC 7845), and each link may have another rate. Raw AAC, AC-3 and transport streams have no header of a file; FFmpeg
reads them to the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

from overtone.data_prep.audio import mp3_frames
from overtone.data_prep.audio.file_view import FilePart, FileView

OGG_PAGE = 27
"""Bytes of the header of a page, without its table of segments (RFC 3533)."""
OGG_FIRST, OGG_LAST = 2, 4
"""Flags of the first and of the last page of a stream."""
CHUNK = 1 << 20
LONGEST_HEADER = 256
"""Bytes of the longest match of a signature."""
LONGEST_TAG = 1 << 24
UNKNOWN_SIZES = (0, 0xFFFFFFFF)
ALIVE_PAGES = 10_000

INITIAL_BLOCK = b"".join(re.escape(bytes([byte])) for byte in range(256) if byte & 8)
"""Second byte of WavPack's flags in the first of the blocks at one position."""

SIGNATURES = {
    "flac": re.compile(rb"fLaC[\0\x80]\0\0\x22"),
    "riff": re.compile(rb"(?:RIFF|RIFX|RF64|BW64)[\0-\xff]{4}(?:WAVE[A-Za-z0-9]{3}[A-Za-z0-9 ]|AVI LIST)"),
    "aiff": re.compile(rb"FORM[\0-\xff]{4}AIF[FC][A-Z]{3}[A-Z ]"),
    "w64": re.compile(rb"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\0\0"),
    "caf": re.compile(rb"caff\0\x01\0\0desc"),
    "au": re.compile(rb"\.snd\0\0[\0-\x0f][\0-\xff]{5}\0\0\0[\x01-\x1b]\0[\0-\x05][\0-\xff]{2}\0\0\0[\x01-\x40]"),
    "matroska": re.compile(rb"\x1a\x45\xdf\xa3[\0-\xff]{1,64}?\x42\x82[\x84\x88](?:webm|matroska)"),
    "asf": re.compile(rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\0\xaa\0\x62\xce\x6c"),
    "tta": re.compile(rb"TTA1[\x01-\x03]\0[\x01-\x40]\0[\x08\x10\x18\x20]\0[\0-\xff]{2}[\0-\x05]\0"),
    "wavpack": re.compile(rb"wvpk[\0-\xff]{4}[\x02-\x10]\x04[\0-\xff]{6}\0{4}[\0-\xff]{5}[" + INITIAL_BLOCK + rb"]"),
    "amr": re.compile(rb"#!AMR(?:-WB)?\n"),
    "flv": re.compile(rb"FLV\x01[\x01\x04\x05]\0\0\0\x09\0\0\0\0"),
    "mp4": re.compile(rb"\0\0[\0-\xff]{2}ftyp[ -~]{4}"),
}
"""Signatures at the beginning of files, by kind."""
OTHERS, MOVIE_BOXES = (b"\0\0\x01", b"G"), (b"moov", b"mdat", b"wide", b"free", b"skip")
"""Beginnings of films that may hold consecutive MP3 frames: MPEG, and QuickTime without a signature."""


def find_parts(part: FilePart, alive: Callable[[], None]) -> list[FilePart]:
    """Return the files that were joined into one, at least one. `alive` is called now and then. Raises `OSError`."""
    if mp3_frames.is_mp3(part):
        return mp3_frames.find_parts(part, alive) or [part]
    with part.open() as file:
        begin = skip_id3(file, 0)
        file.seek(begin)
        head = file.read(LONGEST_HEADER)
        if head.startswith(b"OggS"):
            return list(_find_ogg_links(part, file, alive))
        kind = next((name for name, signature in SIGNATURES.items() if signature.match(head)), None)
        if kind is None:
            is_other = head.startswith(OTHERS) or head[4:8] in MOVIE_BOXES
            return (not is_other and mp3_frames.is_cut_mp3(part) and mp3_frames.find_parts(part, alive)) or [part]
        starts = list(_find_starts(file, kind, begin, part.stop, alive))
        stops = [*(_find_tag_before(file, start) for start in starts[1:]), part.stop]
        ends = [_read_size(file, kind, start) <= stop for start, stop in zip(starts, stops, strict=True)]
        end = _read_end(file, kind, starts[-1], part.stop) if kind in ("mp4", "matroska") else None
    unread = part.stop - (end or part.stop)
    if len(starts) == 1:
        return [replace(part, has_end=ends[0], unread=unread)]
    return [
        FilePart(part.path, start, stop, False, has_end=end, unread=unread) for start, stop, end in zip(starts, stops, ends, strict=True)
    ]


def skip_id3(file: FileView, position: int) -> int:
    """Return the byte after an ID3 tag at `position`, which programs also put before formats other than MP3."""
    file.seek(position)
    head = file.read(10)
    if len(head) < 10 or head[:3] != b"ID3" or max(head[6:]) > 127:
        return position
    return position + 10 + (head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]) + (10 if head[5] & 0x10 else 0)


def _find_starts(file: FileView, kind: str, begin: int, size: int, alive: Callable[[], None]) -> Iterator[int]:
    """Yield the byte at which each file begins. If all sizes in the headers are right, the file is not searched."""
    position: int | None = begin
    while position is not None:
        yield position
        stop = _read_end(file, kind, position, size)
        if stop is None or not (stop == size or _begins(file, kind, stop)):
            stop = position + 1
        position = _search(file, SIGNATURES[kind], stop, size, alive)


def _begins(file: FileView, kind: str, position: int) -> bool:
    file.seek(position)
    return SIGNATURES[kind].match(file.read(LONGEST_HEADER)) is not None


def _search(file: FileView, signature: re.Pattern[bytes], position: int, size: int, alive: Callable[[], None]) -> int | None:
    """Return the byte at which the next file begins."""
    while position < size:
        file.seek(position)
        block = file.read(CHUNK)
        if len(block) == CHUNK:
            alive()
        if found := signature.search(block):
            return position + found.start()
        position += max(1, len(block) - LONGEST_HEADER) if len(block) == CHUNK else len(block) or size
    return None


def _read_end(file: FileView, kind: str, start: int, size: int) -> int | None:
    """Return the byte after a file, by the sizes in it; None if it declares none, or more than there is."""
    if kind == "mp4":
        return _read_mp4_end(file, start, size)
    end = _read_size(file, kind, start)
    return end if start < end <= size else None


def _read_size(file: FileView, kind: str, start: int) -> int:
    """Return the byte after a file, by its header, which may be beyond the end of the whole file; `start` if the header declares no
    size."""
    read = {"riff": _read_riff_end, "aiff": _read_riff_end, "matroska": _read_matroska_end}.get(kind)
    return start if read is None else read(file, start) or start


def _read_riff_end(file: FileView, start: int) -> int | None:
    file.seek(start)
    head = file.read(28)
    order: Literal["little", "big"] = "big" if head[:4] in (b"RIFX", b"FORM") else "little"
    length = int.from_bytes(head[4:8], order)
    if head[:4] in (b"RF64", b"BW64") and head[12:16] == b"ds64":
        length = int.from_bytes(head[20:28], "little")
    return None if length in UNKNOWN_SIZES else start + 8 + length + length % 2


def _read_matroska_end(file: FileView, start: int) -> int | None:
    """Return the byte after the segment; None if it was written live, without a size."""
    position = start
    for name in (b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"):
        file.seek(position)
        head = file.read(12)
        width = 9 - head[4].bit_length() if len(head) == 12 and head[4] else 0
        if head[:4] != name or not width:
            return None
        length = int.from_bytes(head[4 : 4 + width], "big") & ((1 << 7 * width) - 1)
        if length == (1 << 7 * width) - 1:
            return None
        position += 4 + width + length
    return position


def _read_mp4_end(file: FileView, start: int, size: int) -> int:
    """Return the byte after all boxes up to another `ftyp`. Bytes that are no box end the walk, and the rest is searched."""
    position = start
    while position + 8 <= size:
        file.seek(position)
        head = file.read(16)
        if head[4:8] == b"ftyp" and position > start:
            return position
        length = int.from_bytes(head[8:16] if head[:4] == b"\0\0\0\x01" else head[:4], "big")
        if length < 8 or position + length > size:
            is_last = length == 0 and head[4:8].isalnum()  # a box up to the end of the file, not padding
            return size if is_last else min(position + 8, size)
        position += length
    return size


def _find_tag_before(file: FileView, stop: int) -> int:
    """Return the byte at which an ID3 tag begins that ends at `stop`, where the next file begins; `stop` if there is none."""
    base = max(0, stop - LONGEST_TAG)
    file.seek(max(base, stop - CHUNK))
    near = file.read(min(CHUNK, stop - base))
    at = near.rfind(b"ID3")
    while at >= 0:
        position = stop - len(near) + at
        if skip_id3(file, position) == stop:
            return position
        at = near.rfind(b"ID3", 0, at)
    return stop


def _find_ogg_links(part: FilePart, file: FileView, alive: Callable[[], None]) -> Iterator[FilePart]:
    """Yield the links of a chained file: a link begins with the first pages of its streams, before their other pages."""
    start, was_first, ended, only = skip_id3(file, 0), True, False, True
    stop = start
    for number, (position, flags, stop) in enumerate(_walk_ogg_pages(file, start, part.stop)):
        if number % ALIVE_PAGES == 0:
            alive()
        is_first = bool(flags & OGG_FIRST)
        if is_first and not was_first:
            only = False
            yield FilePart(part.path, start, position, False, has_end=ended)
            start = position
        was_first, ended = is_first, bool(flags & OGG_LAST) and stop <= part.stop
    yield FilePart(part.path, start, part.stop, only, has_end=ended, unread=max(0, part.stop - stop))


def read_first_granule(part: FilePart) -> int:
    """Return the time at which the first page with sound ends, in samples; 0 if no page has sound."""
    with part.open() as file:
        pages = _walk_ogg_pages(file, skip_id3(file, 0), part.stop - part.start)
        for position, _, _ in pages:
            file.seek(position + 6)
            granule = int.from_bytes(file.read(8), "little", signed=True)  # 0 or less for a page without sound
            if granule > 0:
                return granule
    return 0


def _walk_ogg_pages(file: FileView, position: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield (byte, flags, the byte after it) of each page; the last may be cut off, so that it would end after `size`."""
    while position + OGG_PAGE <= size:
        file.seek(position)
        head = file.read(OGG_PAGE + 255)
        if head[:4] != b"OggS":
            found = _search(file, re.compile(b"OggS"), position + 1, size, lambda: None)
            if found is None:
                return
            position = found
            continue
        lengths = head[OGG_PAGE : OGG_PAGE + head[26]]
        stop = position + OGG_PAGE + head[26] + sum(lengths)
        yield position, head[5], stop if len(lengths) == head[26] else size + 1
        position = stop
