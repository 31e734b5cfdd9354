"""What is missing of a recording is described once, by the first thing that is known."""

from __future__ import annotations

import numpy as np
import pytest

from overtone.data_prep.audio.decoded_stream import Stream, describe_missing, describe_stop, fit_channels


def make_stream(**given: object) -> Stream:
    return Stream(**{"rate": 1000, "channels": 1, "declared": 10_000, "blocks": iter(()), **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "frames", "description"),
    [
        ({}, 9_950, ""),
        ({}, 10_500, ""),
        ({"declared": None}, 10, ""),
        ({"declared": 300}, 255, ""),
        ({"declared": 300}, 245, "truncated: the file declares 0.30 s and holds 0.24 s"),
        ({}, 9_800, "truncated: the file declares 10.00 s and holds 9.80 s"),
        ({"ends_midway": True}, 10_000, "truncated: the file ends before its audio does, after 10.00 s"),
        (
            {"faults": [500]},
            9_900,
            "damaged: pieces dropped because they cannot be decoded: 1, the first after 0.50 s; 9.90 s of 10.00 decoded",
        ),
        ({"missing": ["part 1 of 2: cut", "part 2 of 2: cut"]}, 10_000, "part 1 of 2: cut; part 2 of 2: cut"),
    ],
)
def test_missing_audio_is_described(given: dict[str, object], frames: int, description: str) -> None:
    assert describe_missing(make_stream(**given), frames) == description


def test_a_decoder_that_stops_is_described() -> None:
    assert (
        describe_stop(make_stream(), 2_500, OSError(5, "Input/output error"))
        == "decoding stopped after 2.50 s of 10.00: Input/output error"
    )


def test_channels_are_repeated_or_averaged() -> None:
    block = np.array([[1, 2, 3, 6]], np.float32)
    assert fit_channels(block[:, :1], 2).tolist() == [[1, 1]]
    assert fit_channels(block[:, :2], 4).tolist() == [[1, 2, 1, 2]]
    assert fit_channels(block, 4).tolist() == block.tolist()
    assert fit_channels(block, 2).tolist() == [[2, 4]]
    assert fit_channels(block, 1).tolist() == [[3]]
