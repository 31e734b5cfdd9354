"""Which recording a name means."""

from __future__ import annotations

import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from overtone.data_prep.recordings.recording_names import (
    RecordingNames,
    are_one_name,
    format_rules,
    has_sound_ending,
    split_name,
    strip_ending,
)

ROOT = Path("/voice")


def decompose(name: str) -> str:
    return unicodedata.normalize("NFD", name)


def find(name: str, *recordings: str) -> dict[str, str]:
    """Recording → rule."""
    found = RecordingNames(ROOT, [ROOT / each for each in recordings]).find(name)
    return {match.recording.relative_to(ROOT).as_posix(): match.rule for match in found}


@pytest.mark.parametrize(
    ("name", "recording", "rule"),
    [
        ("wavs/a.wav", "wavs/a.wav", "as written"),
        ("a", "wavs/a.wav", "by name without ending"),
        ("a.b", "a.b.opus", "by name without ending"),
        ("take.1", "take.1", "as written"),
        ("take", "take.xyz", "by name without ending"),
        ("talk.mp3", "talk.mp3.wav", "by name without ending"),
        ("./wavs/../wavs/a.wav", "a.wav", "as written"),
        ("a.wav", "wavs/a.opus", "with another ending"),
        ("a.WAV", "a.wav", "regardless of case"),
        ("Wavs/Talk.wav", "wavs/talk.wav", "regardless of case"),
        ("C:\\Users\\me\\wavs\\a.wav", "wavs/a.wav", "as written"),
        ("wavs\\a.wav", "wavs/a.opus", "with another ending"),
        ("/home/other/voice/wavs/a.wav", "wavs/a.wav", "as written"),
        ("file:///home/other/wavs/a.wav", "wavs/a.wav", "as written"),
        ("fünf", decompose("fünf.opus"), "by Unicode form"),
        (decompose("wavs/señor.wav"), "wavs/señor.wav", "by Unicode form"),
        ("Fünf.mp3", decompose("fünf.opus"), "regardless of case, with another ending"),
        ("x/señor/a.wav", decompose("señor/a.wav"), "by Unicode form"),
        ("my%20talk.wav", "my talk.wav", "percent-encoded"),
        ("f%C3%BCnf.wav", "fünf.wav", "percent-encoded"),
        ("f%C3%BCnf.wav", decompose("fünf.wav"), "percent-encoded, by Unicode form"),
        ("50%25.wav", "50%25.wav", "as written"),
        ("/data/local-files/?d=wavs/00.opus", "wavs/00.opus", "by address"),
        ("http://localhost:8080/data/local-files/?x=1&d=wavs%2F00.opus", "wavs/00.opus", "by address"),
        (
            "/data/local-files/?d=my%20wavs/f%C3%BCnf.wav",
            decompose("my wavs/fünf.opus"),
            "by address, by Unicode form, with another ending",
        ),
        ("s3://bucket/voice/wavs/00.wav", "wavs/00.wav", "as written"),
        ("https://host/wavs/00.wav?signature=a/b.wav#t=1", "wavs/00.wav", "by address"),
        ("/data/upload/1/0a1b2c3d-talk.wav", "wavs/talk.wav", "without Label Studio's prefix"),
        ("https://host/data/upload/1/0a1b2c3d-talk.wav", "wavs/talk.wav", "without Label Studio's prefix"),
        ("0a1b2c3d-My_talk_1.wav", "My talk (1).wav", "without Label Studio's prefix"),
        ("/data/upload/1/0a1b2c3d-f%C3%BCnf.wav", decompose("fünf.wav"), "percent-encoded, without Label Studio's prefix"),
        ("deadbeef-a.wav", "deadbeef-a.wav", "as written"),
        ("\ufeffa.wav", "a.wav", "by Unicode form"),
        ("wavs/my\u00a0talk.wav\u200b", "wavs/my talk.wav", "by Unicode form"),
    ],
)
def test_one_recording_in_every_form_of_its_name(name: str, recording: str, rule: str) -> None:
    assert find(name, recording, "decoy.wav", "wavs/0a1b2c3d.wav") == {recording: rule}


@pytest.mark.parametrize(
    ("name", "recordings"),
    [
        ("other/b.wav", ["cut/b.wav"]),
        ("001", ["1.wav"]),
        ("1", ["001.wav"]),
        ("a", ["b.wav", "ab.wav", "a-1.wav"]),
        ("abc-talk.wav", ["talk.wav"]),
        ("", ["a.wav"]),
        ("%", ["a.wav"]),
        ("?d=", ["a.wav"]),
    ],
)
def test_other_names_are_not_matched(name: str, recordings: list[str]) -> None:
    assert find(name, *recordings) == {}


def test_the_best_fit_is_found_and_equal_ones_are_all_listed() -> None:
    assert find("talk.wav", "talk.wav", "Talk.wav", "talk.opus") == {"talk.wav": "as written"}
    assert [*find("TALK.wav", "talk.wav", "Talk.wav")] == ["talk.wav", "Talk.wav"]
    assert [*find("talk.wav", "talk.opus", "talk.flac")] == ["talk.opus", "talk.flac"]
    assert [*find("a.wav", "a.wav", "sub/a.wav")] == ["a.wav"], "the whole path"
    assert [*find("x/sub/a.wav", "a.wav", "sub/a.wav", "y/sub/a.wav")] == ["sub/a.wav"], "more folders"
    assert [*find("a", "anna/a.wav", "bo/a.wav")] == ["anna/a.wav", "bo/a.wav"]
    assert [*find("take", "take.1", "take.2")] == ["take.1", "take.2"]


def test_the_nearest_name() -> None:
    paths = [ROOT / name for name in ("chapter_01.wav", "chapter_02.wav", decompose("Fünf.wav"))]
    names = RecordingNames(ROOT, paths)
    assert names.find_nearest("wavs/chapter_1.flac", paths) == "chapter_01.wav"
    assert names.find_nearest("wavs/chapter_1.flac", paths[1:]) == "chapter_02.wav"
    assert names.find_nearest("fünfe", paths) == decompose("Fünf.wav")
    assert names.find_nearest("railway", paths) == ""


def test_parts_of_names() -> None:
    assert split_name("./clips/a.b.wav") == ("clips", "a.b.wav") and split_name("..") == ("..",)
    assert strip_ending("a.WAV") == "a" and strip_ending("a.b") == "a.b" and has_sound_ending("talk.mp4") and not has_sound_ending("wav")
    assert are_one_name(Path("x/a.wav"), Path("x/a.mp3")) and not are_one_name(Path("x/a.wav"), Path("y/a.wav"))
    assert not are_one_name(Path("x/take.1"), Path("x/take.2"))
    assert format_rules("transcript", Counter({"a": 1, "b": 2})) == "3 transcripts found: 2 b; 1 a"
