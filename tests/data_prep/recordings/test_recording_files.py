"""Which files count as recordings, in which order, and who their speaker is."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import av
import numpy as np
import pytest

from overtone.data_prep.audio.waveform import EXTENSIONS, probe_recording
from overtone.data_prep.recordings.recording_files import count_ignored, find_recordings, format_counts
from overtone.finetune.errors import UserError


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
    with pytest.raises(UserError, match="does not exist"):
        find_recordings(tmp_path / "absent", "me", skip=tmp_path / "out")
    with pytest.raises(UserError, match=r"sub-folders; found 1 \.txt$"):
        find_recordings(tmp_path, "me", skip=tmp_path / "out")


def test_other_files_are_counted_by_their_ending(tmp_path) -> None:
    folder = make(tmp_path / "in", "a.wav", "a.txt", "deep/b.TXT", "b.docx", "README", ".hidden.wav", ".git/x", "out/x.json")
    counts = count_ignored(folder, folder / "out", find_recordings(folder, "me", folder / "out"))
    assert counts == {".txt": 2, ".docx": 1, "without an ending": 1, "hidden": 2}
    assert format_counts(counts) == "2 .txt, 2 hidden, 1 .docx, 1 without an ending"


def encode(path: Path, container: str, codec: str, streams: int = 1, *, picture: bool = False) -> Path:
    """A file with a second of noise in each audio stream, and a film of one picture before them if asked."""
    samples = np.random.default_rng(0).integers(-9000, 9000, (1, 24_000)).astype(np.int16)
    with av.open(str(path), "w", format=container) as file:
        film = file.add_stream("mpeg4", rate=25, width=64, height=64, pix_fmt="yuv420p") if picture else None
        tracks = [file.add_stream(codec, rate=24_000, layout="mono") for _ in range(streams)]
        for number, track in enumerate(tracks):
            track.metadata["language"] = ("eng", "deu", "fra")[number]
        if film:
            file.mux(film.encode(av.VideoFrame(64, 64, "yuv420p")))
        for track in tracks:
            frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
            frame.sample_rate = 24_000
            for each in av.AudioResampler(format=track.format, layout="mono", rate=24_000, frame_size=track.frame_size or 0).resample(
                frame
            ):
                file.mux(track.encode(each))
            file.mux(track.encode())
        if film:
            file.mux(film.encode())
    return path


FILMS = {
    "a.mp4": ("mp4", "aac"),
    "b.mov": ("mov", "aac"),
    "c.mkv": ("matroska", "aac"),
    "d.mka": ("matroska", "mp3"),
    "e.m4b": ("mp4", "aac"),
}
FILMS |= {"f.oga": ("ogg", "libopus"), "g.3gp": ("3gp", "aac"), "h.caf": ("caf", "pcm_s16be"), "i.au": ("au", "pcm_s16be")}
FILMS |= {"j.avi": ("avi", "mp3"), "k.xyz": ("matroska", "aac"), "without": ("mp4", "aac")}


def test_the_decoder_says_which_files_are_recordings(tmp_path) -> None:
    """Also films, and files of any name; pictures, texts and other bytes are none, whatever FFmpeg can make of them."""
    for name, (container, codec) in FILMS.items():
        encode(tmp_path / name, container, codec, picture=name in ("a.mp4", "c.mkv", "k.xyz"))
    noise = np.random.default_rng(1).bytes(200_000)
    for name, content in (
        ("x.dat", noise),
        ("y.png", b"\x89PNG"),
        ("picture", None),
        ("z", b"A text.\n" * 500),
        ("empty", b""),
        ("w.part", (tmp_path / "a.mp4").read_bytes()),
    ):
        if content is None:
            frame = av.VideoFrame(64, 64, "rgb24")
            with av.open(str(tmp_path / name), "w", format="image2pipe") as file:
                track = file.add_stream("png", width=64, height=64, pix_fmt="rgb24")
                file.mux(track.encode(frame))
                file.mux(track.encode())
        else:
            (tmp_path / name).write_bytes(content)
    found = find_recordings(tmp_path, "me", tmp_path / "out")
    assert [source.name for source in found] == sorted(FILMS)
    assert all(probe_recording(source.path).frames >= 23_000 for source in found)
    assert sum(count_ignored(tmp_path, tmp_path / "out", found).values()) == 6


def test_one_file_is_a_folder_of_one_recording(tmp_path) -> None:
    encode(tmp_path / "talk.mp4", "mp4", "aac", picture=True)
    (source,) = find_recordings(tmp_path / "talk.mp4", "me", tmp_path / "out")
    assert (source.name, source.speaker, source.problem) == ("talk.mp4", "me", "")
    (tmp_path / "notes.txt").write_text("A text.")
    with pytest.raises(UserError, match=r"notes.txt is not a recording; give a recording, or the folder"):
        find_recordings(tmp_path / "notes.txt", "me", tmp_path / "out")


def test_several_audio_streams_are_reported(tmp_path) -> None:
    track = probe_recording(encode(tmp_path / "film.mkv", "matroska", "aac", streams=3, picture=True))
    assert track.note == "3 audio streams (eng, deu, fra); the first is read" and track.warning == ""


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
