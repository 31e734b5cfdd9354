"""Each possible problem of a row and between rows, and rows without a problem."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from overtone.data_prep.audio.stream_reader import AudioError
from overtone.data_prep.audio_codecs.qwen3_tts_codec import RELEASED_FORMAT
from overtone.data_prep.dataset.clip_audio_checks import AudioInfo
from overtone.data_prep.dataset.manifest_line_reader import ManifestLine
from overtone.data_prep.dataset.row_checks import (
    NOTES,
    PROBLEMS,
    RowFacts,
    check_across_rows,
    check_clip,
    check_fields,
    check_reference,
    collect_facts,
    find_codes_fault,
)
from overtone.data_prep.manifest import LANGUAGES as CODES_OF_LANGUAGES
from overtone.data_prep.manifest import ManifestRow

LANGUAGES = CODES_OF_LANGUAGES.values()
SOUND = AudioInfo(24_000, 1, 48_000, "aa")
CODES = [[0, 2047] * 8] * 25


def line(**fields: object) -> tuple[ManifestLine, ManifestRow]:
    row = ManifestRow.model_validate({"audio": "a.flac", "text": "A.", "speaker": "me", **fields})
    return ManifestLine(Path("train.jsonl"), 3, row), row


def test_a_valid_row_has_no_problem() -> None:
    whole = line(duration=2.0, audio_codes=CODES, language="English", ref_audio="r.flac")
    assert [*check_clip(*whole, SOUND, RELEASED_FORMAT), *check_reference(*whole, SOUND), *check_fields(*whole, LANGUAGES)] == []
    for language in ("auto", "en", "chinese", ""):
        assert list(check_fields(*line(language=language), LANGUAGES)) == []


@pytest.mark.parametrize(
    ("fields", "sound", "kind", "detail"),
    [
        ({}, AudioError("no_file", "there is no such file"), "no_file", "a.flac: there is no such file"),
        ({}, AudioError("nan", "at 3 s"), "nan", "a.flac: at 3 s"),
        ({}, AudioError("another_reason", "why"), "unreadable", "a.flac: why"),
        ({}, dataclasses.replace(SOUND, rate=16_000), "rate", "a.flac: 16000 Hz"),
        ({}, dataclasses.replace(SOUND, channels=2), "channels", "a.flac: 2 channels"),
        ({"duration": 2.5}, SOUND, "duration", "the row says 2.500 s, the clip lasts 2.000 s"),
        ({"audio_codes": CODES[1:]}, SOUND, "codes", "24 frames for 48000 samples at 24000 Hz, expected 25"),
        ({"audio_codes": CODES}, dataclasses.replace(SOUND, frames=48_001), "codes", "25 frames for 48001 samples"),
        ({"audio_codes": []}, SOUND, "codes", "0 frames"),
        ({"audio_codes": [*CODES[1:], [1] * 15]}, SOUND, "codes", "frame 24 has 15 codes, expected 16"),
        ({"audio_codes": [*CODES[1:], [2048] * 16]}, SOUND, "codes", "codes from 0 to 2048, expected 0 to 2047"),
        ({"audio_codes": [*CODES[1:], [-1] * 16]}, SOUND, "codes", "codes from -1 to 2047"),
    ],
)
def test_rows_are_checked_against_their_clip(fields: dict[str, object], sound: AudioInfo | AudioError, kind: str, detail: str) -> None:
    (problem,) = check_clip(*line(**fields), sound, RELEASED_FORMAT)
    assert (problem.kind, problem.place) == (kind, "train.jsonl:3")
    assert detail in problem.detail


def test_codes_of_a_clip_at_another_rate_are_counted_at_the_master_rate() -> None:
    assert find_codes_fault(CODES, AudioInfo(44_100, 1, 88_200, "").count_samples(24_000), RELEASED_FORMAT) == ""


def test_rows_are_checked_against_their_reference_clip() -> None:
    row = line(ref_audio="r.wav")
    assert [problem.kind for problem in check_reference(*row, AudioError("no_file", "gone"))] == ["ref_audio"]
    assert [problem.kind for problem in check_reference(*row, dataclasses.replace(SOUND, rate=44_100))] == ["ref_rate"]


def test_rows_are_checked_without_audio() -> None:
    assert [problem.kind for problem in check_fields(*line(language="klingon"), LANGUAGES)] == ["language"]
    assert list(check_fields(*line(language="klingon"), [])) == [], "a model that is given no language"
    assert [problem.kind for problem in check_fields(*line(speaker=None), LANGUAGES)] == ["no_speaker"]
    hidden = list(check_fields(*line(text="a\u00adb\u200bc"), LANGUAGES))
    assert [(problem.kind, problem.detail) for problem in hidden] == [("invisible", "1 soft hyphens, 1 zero-width characters")]


def rows(*different: dict[str, object], split: str = "train") -> list[RowFacts]:
    plain = collect_facts(*line(), SOUND)
    return [
        dataclasses.replace(plain, **{"place": f"{split}:{n}", "sound": AudioInfo(24_000, 1, 9, f"{split}{n}"), **fields})
        for n, fields in enumerate(different, start=1)
    ]


def validating(*different: dict[str, object]) -> list[RowFacts]:
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
def test_rows_are_checked_against_each_other(beside: list[RowFacts], kind: str, place: str) -> None:
    (problem,) = check_across_rows(beside)
    assert (problem.kind, problem.place) == (kind, place)


def test_an_overlap_between_training_and_validation_is_a_leak() -> None:
    for trained, validated in (((0, 5), (4, 9)), ((4, 9), (0, 5)), ((0, 9), (2, 3)), ((2, 3), (0, 9)), ((1, 2), (1, 2))):
        found = check_across_rows(rows(stretch(20, 30), stretch(*trained)) + validating(stretch(*validated)))
        assert [(problem.kind, problem.place) for problem in found] == [("overlap", "val:1"), ("same_recording", "val:1")]
    long_before = rows(stretch(0, 60), stretch(1, 2), stretch(3, 4)) + validating(stretch(50, 55))
    assert "overlap" in {problem.kind for problem in check_across_rows(long_before)}


def test_rows_without_an_overlap_have_no_problem() -> None:
    assert list(check_across_rows(rows({}, {}) + validating({}))) == []
    assert list(check_across_rows(validating({}))) == []
    assert list(check_across_rows([])) == []


def test_every_kind_is_a_problem_or_a_note() -> None:
    assert not set(PROBLEMS) & set(NOTES)


@pytest.mark.parametrize(
    ("name", "split", "validates"),
    [("train.jsonl", "val", False), ("val.jsonl", None, True), ("x.jsonl", "val", True), ("x.jsonl", None, False)],
)
def test_the_file_name_of_a_data_prep_manifest_decides_which_rows_are_for_validation(name: str, split: str | None, validates: bool) -> None:
    row = line(split=split)[1]
    assert collect_facts(ManifestLine(Path(name), 1, row), row, SOUND).validates is validates
