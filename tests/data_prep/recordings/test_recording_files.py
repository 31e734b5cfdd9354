"""Which files count as recordings, in which order, and who their speaker is."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from data_prep.audio.waveform import EXTENSIONS
from data_prep.recordings.recording_files import count_ignored, find_recordings, format_counts
from finetune.errors import UserError


def make(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return folder


def test_recordings_are_found_in_sub_folders_sorted_and_by_any_case(tmp_path) -> None:
    folder = make(tmp_path / "in", "b.wav", "a/c.MP3", "a/d e'f.flac", "notes.txt", ".hidden/x.wav", "a/.y.wav", "ü/声.m4a")
    found = find_recordings(folder, "Me", skip=tmp_path / "out")
    assert [source.name for source in found] == ["a/c.MP3", "a/d e'f.flac", "b.wav", "ü/声.m4a"]
    assert {source.speaker for source in found} == {"me"}
    assert found[0].digest == hashlib.sha256(b"a/c.MP3").hexdigest()


def test_a_file_name_that_is_not_utf_8_is_read_and_escaped_in_reports(tmp_path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.wav")).write_bytes(b"x")
    (source,) = find_recordings(tmp_path, "me", skip=tmp_path / "out")
    assert source.name == "caf\\xe9.wav"
    assert source.path.read_bytes() == b"x"


def test_the_output_folder_is_not_scanned(tmp_path) -> None:
    folder = make(tmp_path / "in", "a.wav", "out/clips/b.flac")
    assert [source.name for source in find_recordings(folder, "me", skip=folder / "out")] == ["a.wav"]


def test_folder_names_are_speakers(tmp_path) -> None:
    folder = make(tmp_path / "in", "Anna/a.wav", "Bo/deep/b.wav")
    assert [source.speaker for source in find_recordings(folder, None, skip=tmp_path / "out")] == ["anna", "bo"]
    make(folder, "nobody.wav")
    with pytest.raises(UserError, match=r"nobody\.wav is not in a sub-folder"):
        find_recordings(folder, None, skip=tmp_path / "out")


def test_a_folder_without_recordings_is_refused_with_the_known_endings(tmp_path) -> None:
    make(tmp_path, "readme.txt")
    with pytest.raises(UserError) as caught:
        find_recordings(tmp_path, "me", skip=tmp_path / "out")
    assert len(EXTENSIONS) >= 10
    assert all(ending in str(caught.value) for ending in EXTENSIONS)
    with pytest.raises(UserError, match="is not a folder"):
        find_recordings(tmp_path / "absent", "me", skip=tmp_path / "out")
    with pytest.raises(UserError, match=r"sub-folders; found 1 \.txt$"):
        find_recordings(tmp_path, "me", skip=tmp_path / "out")


def test_other_files_are_counted_by_their_ending(tmp_path) -> None:
    folder = make(tmp_path / "in", "a.wav", "a.txt", "deep/b.TXT", "b.docx", "README", ".hidden.wav", ".git/x", "out/x.json")
    counts = count_ignored(folder, skip=folder / "out")
    assert counts == {".txt": 2, ".docx": 1, "without an ending": 1, "hidden": 2}
    assert format_counts(counts) == "2 .txt, 2 hidden, 1 .docx, 1 without an ending"


def test_circular_links_are_followed_once(tmp_path) -> None:
    folder = make(tmp_path / "in", "anna/a.wav")
    make(tmp_path / "elsewhere", "b.wav")
    (folder / "bo").symlink_to(tmp_path / "elsewhere")
    (folder / "anna" / "again").symlink_to(folder)
    (folder / "anna" / "c.wav").symlink_to(tmp_path / "elsewhere" / "b.wav")
    found = {source.name: source for source in find_recordings(folder, None, skip=tmp_path / "out")}
    assert list(found) == ["anna/a.wav", "anna/again", "anna/c.wav", "bo/b.wav"]
    assert found["anna/again"].problem == "a link to a parent folder (a loop)"
    assert found["anna/c.wav"].digest == found["bo/b.wav"].digest != ""


def test_an_unreadable_file_is_a_recording_with_a_problem(tmp_path) -> None:
    folder = make(tmp_path / "in", "good.wav", "folder.wav/inside.wav")
    (folder / "circle.wav").symlink_to(folder / "circle.wav")
    (folder / "gone.mp3").symlink_to("../nowhere.mp3")
    (folder / "memory.wav").symlink_to("/proc/self/mem")  # a file that the system will not read, even to its owner
    os.mkfifo(folder / "pipe.wav")
    found = {source.name: source for source in find_recordings(folder, "me", skip=tmp_path / "out")}
    assert {name: source.problem for name, source in found.items() if source.problem} == {
        "circle.wav": f"a link to '{folder}/circle.wav': cannot be read: Too many levels of symbolic links",
        "folder.wav": "a folder, despite its name; its contents are read",
        "gone.mp3": "a link to '../nowhere.mp3': cannot be read: No such file or directory",
        "memory.wav": "a link to '/proc/self/mem': cannot be read: Input/output error",
        "pipe.wav": "not a regular file but a pipe, a socket or a device",
    }
    assert {name for name, source in found.items() if source.digest} == {"good.wav", "folder.wav/inside.wav"}


@pytest.fixture
def without_privileges():
    """Nothing is forbidden to root: as nobody, then, for the length of a test."""
    owner = os.geteuid()
    if owner == 0:
        os.seteuid(65534)
    yield
    os.seteuid(owner)


def test_an_unreadable_folder_is_reported(tmp_path, monkeypatch, request) -> None:
    folder = make(tmp_path / "in", "shut/a.wav", "shut.wav", "good.wav")
    for name in ("shut", "shut.wav"):
        (folder / name).chmod(0)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # the folders above stay closed to nobody
    request.getfixturevalue("without_privileges")
    found = {source.name: source.problem for source in find_recordings(Path("in"), "me", skip=Path("out"))}
    assert found == {
        "good.wav": "",
        "shut": "the folder cannot be listed: Permission denied",
        "shut.wav": "cannot be read: Permission denied",
    }
