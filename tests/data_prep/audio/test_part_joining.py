"""The parts of a joined file become one stream of one format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from overtone.data_prep.audio.decoded_stream import AudioError, Samples, Stream, describe_missing
from overtone.data_prep.audio.file_view import FilePart
from overtone.data_prep.audio.part_joining import join_parts

PARTS = [FilePart(Path("joined"), number, number + 1, False) for number in range(3)]


def make_opener(*streams: tuple[int, int, int, str]):
    """Opens a stream of ones: rate, channels, frames, and what goes wrong."""

    def read(channels: int, frames: int, problem: str) -> Iterator[Samples]:
        yield np.ones((frames, channels), np.float32)
        if problem == "stops":
            raise OSError(5, "lost")

    def open_part(part: FilePart) -> Stream:
        rate, channels, frames, problem = streams[part.start]
        if problem == "unreadable":
            raise AudioError("unreadable", "no header")
        return Stream(rate, channels, frames + (1000 if problem == "short" else 0), read(channels, frames, problem), notes=["said"])

    return open_part


def test_all_parts_are_read_whatever_happens_to_one() -> None:
    stream = join_parts(PARTS, make_opener((8000, 1, 8000, "stops"), (8000, 2, 4000, ""), (8000, 1, 2000, "short")))
    samples = np.concatenate(list(stream.blocks))
    assert (stream.rate, stream.channels, stream.declared) == (8000, 2, 15_000)
    assert samples.shape == (14_000, 2) and (samples == 1).all()
    assert describe_missing(stream, 14_000) == (
        "part 1 of 3: decoding stopped after 1.00 s of 1.00: lost; part 3 of 3: truncated: the file declares 0.38 s and holds 0.25 s"
    )
    assert stream.notes == [
        "3 files joined into one, all read (the next begin at 1.00 s, 1.50 s)",
        "converted to 8000 Hz and 2 channels: part 1 of 3 from 8000 Hz and 1 channel, part 3 of 3 from 8000 Hz and 1 channel",
        "part 1 of 3: said",
        "part 2 of 3: said",
        "part 3 of 3: said",
    ]


def test_a_lower_rate_is_resampled_without_a_shift() -> None:
    stream = join_parts(PARTS[:2], make_opener((8000, 1, 8000, ""), (16_000, 1, 16_000, "")))
    samples = np.concatenate(list(stream.blocks))
    assert (stream.rate, len(samples)) == (16_000, 32_000)
    assert np.abs(samples[200:15_800] - 1).max() < 0.01


def test_a_part_that_cannot_be_opened_is_missing() -> None:
    stream = join_parts(PARTS, make_opener((8000, 1, 8000, ""), (0, 0, 0, "unreadable"), (8000, 1, 8000, "")))
    assert sum(map(len, stream.blocks)) == 16_000
    assert stream.missing == ["part 2 of 3 at 1.00 s: no header"]
    with pytest.raises(AudioError, match="no header"):
        join_parts(PARTS, make_opener(*[(0, 0, 0, "unreadable")] * 3))
