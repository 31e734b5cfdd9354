"""Which files count as recordings, in which order, and whose they are."""

from __future__ import annotations

import hashlib
import os

import pytest

from data_prep.audio import EXTENSIONS
from data_prep.sources import scan
from finetune.errors import UserError


def make(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return folder


def test_recordings_are_found_in_sub_folders_sorted_and_by_any_case(tmp_path) -> None:
    folder = make(tmp_path / "in", "b.wav", "a/c.MP3", "a/d e'f.flac", "notes.txt", ".hidden/x.wav", "a/.y.wav", "ü/声.m4a")
    found = scan(folder, "Me", skip=tmp_path / "out")
    assert [source.name for source in found] == ["a/c.MP3", "a/d e'f.flac", "b.wav", "ü/声.m4a"]
    assert {source.speaker for source in found} == {"me"}
    assert found[0].digest == hashlib.sha256(b"a/c.MP3").hexdigest()


def test_a_name_that_is_not_text_is_read_and_reported(tmp_path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.wav")).write_bytes(b"x")
    (source,) = scan(tmp_path, "me", skip=tmp_path / "out")
    assert source.name == "caf\ufffd.wav"
    assert source.path.read_bytes() == b"x"


def test_the_output_is_no_input(tmp_path) -> None:
    folder = make(tmp_path / "in", "a.wav", "out/clips/b.flac")
    assert [source.name for source in scan(folder, "me", skip=folder / "out")] == ["a.wav"]


def test_folders_name_speakers(tmp_path) -> None:
    folder = make(tmp_path / "in", "Anna/a.wav", "Bo/deep/b.wav")
    assert [source.speaker for source in scan(folder, None, skip=tmp_path / "out")] == ["anna", "bo"]
    make(folder, "nobody.wav")
    with pytest.raises(UserError, match=r"nobody\.wav lies in no sub-folder"):
        scan(folder, None, skip=tmp_path / "out")


def test_no_recordings_lists_what_was_looked_for(tmp_path) -> None:
    make(tmp_path, "readme.txt")
    with pytest.raises(UserError) as caught:
        scan(tmp_path, "me", skip=tmp_path / "out")
    assert len(EXTENSIONS) >= 10
    assert all(ending in str(caught.value) for ending in EXTENSIONS)
    with pytest.raises(UserError, match="is not a folder"):
        scan(tmp_path / "absent", "me", skip=tmp_path / "out")
