"""A range of a file behaves as a file of its own."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.data_prep.audio.file_view import FilePart

CONTENT = bytes(range(100))


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("view") / "file"
    found.write_bytes(CONTENT)
    return found


@given(st.lists(st.tuples(st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END]), st.integers(-60, 60), st.integers(-1, 70))))
def test_a_view_reads_as_a_file_with_these_bytes(path: Path, moves: list[tuple[int, int, int]]) -> None:
    plain = io.BytesIO(b"prefix" + CONTENT[20:60])
    with FilePart(path, 20, 60, False, b"prefix").open() as view:
        for whence, offset, size in moves:
            base = {os.SEEK_SET: 0, os.SEEK_CUR: plain.tell(), os.SEEK_END: 46}[whence]
            if base + offset < 0:
                with pytest.raises(ValueError, match="before the start"):
                    view.seek(offset, whence)
                continue
            assert view.seek(offset, whence) == plain.seek(offset, whence)
            assert view.read(size) == plain.read(size)
            assert view.tell() == plain.tell()
        buffer = bytearray(10)
        view.seek(3)
        assert view.readinto(memoryview(buffer)) == 10
        assert buffer == b"fix" + CONTENT[20:27]


def test_a_view_of_a_file_that_became_shorter_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    with FilePart(tmp_path / "short", 1, 100).open() as view:
        assert view.read() == b"bc"
