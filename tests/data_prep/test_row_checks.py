"""Each thing that can be wrong with a row, and with rows beside each other; and rows with which nothing is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from data_prep.formats import AudioError
from data_prep.lines import Line
from data_prep.manifest import Row
from data_prep.row_checks import CODEBOOK, NOTES, PROBLEMS, Facts, about_all, about_clip, about_reference, about_words, facts, fault_of
from data_prep.sounds import Sound

SOUND = Sound(24_000, 1, 48_000, "aa")
CODES = [[0, 2047] * 8] * 25


def line(**fields: object) -> tuple[Line, Row]:
    row = Row.model_validate({"audio": "a.flac", "text": "A.", "speaker": "me", **fields})
    return Line(Path("train.jsonl"), 3, row), row


def test_a_sound_row_has_no_problem() -> None:
    whole = line(duration=2.0, audio_codes=CODES, language="English", ref_audio="r.flac")
    assert [*about_clip(*whole, SOUND, CODEBOOK), *about_reference(*whole, SOUND), *about_words(*whole)] == []
    for language in ("auto", "en", "chinese", ""):
        assert list(about_words(*line(language=language))) == []


@pytest.mark.parametrize(
    ("fields", "sound", "kind", "detail"),
    [
        ({}, AudioError("no_file", "there is no such file"), "no_file", "a.flac: there is no such file"),
        ({}, AudioError("nan", "at 3 s"), "nan", "a.flac: at 3 s"),
        ({}, AudioError("another_reason", "why"), "unreadable", "a.flac: why"),
        ({}, dataclasses.replace(SOUND, rate=16_000), "rate", "a.flac: 16000 Hz"),
        ({}, dataclasses.replace(SOUND, channels=2), "channels", "a.flac: 2 channels"),
        ({"duration": 2.5}, SOUND, "duration", "the row says 2.500 s, the clip lasts 2.000 s"),
        ({"audio_codes": CODES[1:]}, SOUND, "codes", "24 frames for 48000 samples at 24000 Hz, 25 are expected"),
        ({"audio_codes": CODES}, dataclasses.replace(SOUND, frames=48_001), "codes", "25 frames for 48001 samples"),
        ({"audio_codes": []}, SOUND, "codes", "0 frames"),
        ({"audio_codes": [*CODES[1:], [1] * 15]}, SOUND, "codes", "frame 24 has 15 codes, 16 are expected"),
        ({"audio_codes": [*CODES[1:], [2048] * 16]}, SOUND, "codes", "codes from 0 to 2048, 0 to 2047 are expected"),
        ({"audio_codes": [*CODES[1:], [-1] * 16]}, SOUND, "codes", "codes from -1 to 2047"),
    ],
)
def test_what_the_clip_says(fields: dict[str, object], sound: Sound | AudioError, kind: str, detail: str) -> None:
    (problem,) = about_clip(*line(**fields), sound, CODEBOOK)
    assert (problem.kind, problem.place) == (kind, "train.jsonl:3")
    assert detail in problem.detail


def test_codes_of_a_clip_at_another_rate_are_counted_at_the_master_rate() -> None:
    assert fault_of(CODES, Sound(44_100, 1, 88_200, "").length, CODEBOOK) == ""


def test_what_the_reference_says() -> None:
    row = line(ref_audio="r.wav")
    assert [problem.kind for problem in about_reference(*row, AudioError("no_file", "gone"))] == ["ref_audio"]
    assert [problem.kind for problem in about_reference(*row, dataclasses.replace(SOUND, rate=44_100))] == ["ref_rate"]


def test_what_is_said_without_hearing() -> None:
    assert [problem.kind for problem in about_words(*line(language="klingon"))] == ["language"]
    assert [problem.kind for problem in about_words(*line(speaker=None))] == ["no_speaker"]


def rows(*different: dict[str, object], split: str = "train") -> list[Facts]:
    plain = facts(*line(), SOUND)
    return [
        dataclasses.replace(plain, **{"place": f"{split}:{n}", "sound": Sound(24_000, 1, 9, f"{split}{n}"), **fields})
        for n, fields in enumerate(different, start=1)
    ]


def validating(*different: dict[str, object]) -> list[Facts]:
    return rows(*({"validates": True, **fields} for fields in different), split="val")


def stretch(start: float, end: float) -> dict[str, object]:
    return {"source": "talk.wav", "start": start, "end": end}


@pytest.mark.parametrize(
    ("beside", "kind", "place"),
    [
        (rows({"id": "a"}, {"id": None}, {"id": "a"}, {"id": None}), "same_id", "train:3"),
        (rows({"sound": SOUND}, {}, {"sound": SOUND}), "same_clip", "train:3"),
        (rows({"sound": SOUND}) + validating({}, {"sound": SOUND}), "in_both_splits", "val:2"),
        (rows({}, {}) + validating({"speaker": "you"}), "unknown_speaker", "val:1"),
        (rows({"coded": True}, {"coded": False}), "codes_missing", "train:2"),
        (rows(stretch(0, 5)) + validating(stretch(5, 9)), "same_recording", "val:1"),
    ],
)
def test_what_rows_say_beside_each_other(beside: list[Facts], kind: str, place: str) -> None:
    (problem,) = about_all(beside)
    assert (problem.kind, problem.place) == (kind, place)


def test_a_stretch_on_both_sides_is_a_leak_however_it_lies() -> None:
    for trained, validated in (((0, 5), (4, 9)), ((4, 9), (0, 5)), ((0, 9), (2, 3)), ((2, 3), (0, 9)), ((1, 2), (1, 2))):
        found = about_all(rows(stretch(20, 30), stretch(*trained)) + validating(stretch(*validated)))
        assert [(problem.kind, problem.place) for problem in found] == [("overlap", "val:1"), ("same_recording", "val:1")]
    long_before = rows(stretch(0, 60), stretch(1, 2), stretch(3, 4)) + validating(stretch(50, 55))
    assert "overlap" in {problem.kind for problem in about_all(long_before)}


def test_rows_that_share_nothing_have_no_problem() -> None:
    assert list(about_all(rows({}, {}) + validating({}))) == []
    assert list(about_all(validating({}))) == []
    assert list(about_all([])) == []


def test_every_kind_is_a_problem_or_a_note() -> None:
    assert not set(PROBLEMS) & set(NOTES)


@pytest.mark.parametrize(
    ("name", "split", "validates"),
    [("train.jsonl", "val", False), ("val.jsonl", None, True), ("x.jsonl", "val", True), ("x.jsonl", None, False)],
)
def test_the_file_says_what_is_validated_on_where_it_is_ours(name: str, split: str | None, validates: bool) -> None:
    row = line(split=split)[1]
    assert facts(Line(Path(name), 1, row), row, SOUND).validates is validates
