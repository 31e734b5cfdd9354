"""Spliced clips have the codes of their words, in order, at one speed; missing inputs are reported."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from workshop.demo_models.base import spliced_clips

WORDS = ("the", "lamp", "Anna")
ALONE = [
    {"speaker": voice, "text": f"{word}.", "audio": f"{voice}.flac", "speed": speed, "audio_codes": [[at, take]] * (take + 1)}
    for voice in ("slt", "awb")
    for at, word in enumerate(WORDS)
    for take, speed in enumerate((1.0, 1.15, 1.3))
]
SPOKEN = [
    {"speaker": voice, "text": "Anna.", "audio": f"{voice}-{number}.flac", "audio_codes": [[0, 0]]}
    for voice in ("slt", "awb")
    for number in range(10)
]


def test_a_spliced_clip_has_the_codes_of_its_words_at_one_speed() -> None:
    rows = list(islice(spliced_clips.splice_clips(ALONE, SPOKEN, 0, 4), 200))
    for row in rows:
        take = row["audio_codes"][0][1]
        words = row["text"].rstrip(".").split()
        expected = [WORDS.index("the" if number == 0 else word) for number, word in enumerate(words)]
        assert row["audio_codes"] == [[word, take] for word in expected for _ in range(take + 1)]
        assert 2 <= len(words) <= 5 and words[0] == "The"
        assert row["ref_audio"].startswith(f"{row['speaker']}-")
    assert {row["speaker"] for row in rows} == {"slt", "awb"} and {row["audio_codes"][0][1] for row in rows} == {0, 1, 2}
    assert (
        rows
        == list(islice(spliced_clips.splice_clips(ALONE, SPOKEN, 0, 4), 200))
        != list(islice(spliced_clips.splice_clips(ALONE, SPOKEN, 1, 4), 200))
    )


def test_spliced_clips_use_many_reference_clips() -> None:
    """A speaker's vector is the mean over the clips that rows name; with one clip for all rows it would be the vector of that clip."""
    rows = islice(spliced_clips.splice_clips(ALONE, SPOKEN, 0, 4), 200)
    assert {row["ref_audio"] for row in rows} == {row["audio"] for row in SPOKEN}


def test_a_word_is_not_used_at_a_speed_at_which_its_clip_is_missing() -> None:
    """`overtone codes` may reject a clip; the next one in the file must not replace it."""
    gone = [row for row in ALONE if not (row["speaker"] == "slt" and row["speed"] == 1.0 and row["text"] in ("the.", "Anna."))]
    gone = [row for row in gone if not (row["speaker"] == "awb" and row["speed"] == 1.15 and row["text"] == "lamp.")]
    rows = list(islice(spliced_clips.splice_clips(gone, SPOKEN, 0, 4), 400))
    for row in rows:
        takes = {take for _, take in row["audio_codes"]}
        assert len(takes) == 1 and (takes != {0} or row["speaker"] == "awb")
        assert "lamp" not in row["text"] or (row["speaker"], takes) != ("awb", {1})
    assert {(row["speaker"], row["audio_codes"][0][1]) for row in rows} == {("slt", 1), ("slt", 2), ("awb", 0), ("awb", 1), ("awb", 2)}


def test_the_command_writes_the_files_for_both_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spliced_clips, "SPLICED", 7)
    monkeypatch.setattr(spliced_clips, "MIXED", 3)
    files.write_jsonl(tmp_path / "base-alone.jsonl", ALONE)
    files.write_jsonl(tmp_path / "base-train.jsonl", SPOKEN)
    assert spliced_clips.main(["--corpus", str(tmp_path)]) == 0
    spliced, mixed = (spliced_clips.read_coded_rows(tmp_path / f"base-{name}.jsonl") for name in ("spliced", "mixed"))
    assert len(spliced) == 7 and len(mixed) == 3 + len(SPOKEN)
    assert sorted(row["audio"] for row in mixed if "audio" in row) == sorted(row["audio"] for row in SPOKEN)
    assert not any(row in spliced for row in mixed)


def test_missing_files_and_codes_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"base-alone\.jsonl is missing; create it: python -m"):
        spliced_clips.main(["--corpus", str(tmp_path)])
    files.write_text(tmp_path / "base-alone.jsonl", json.dumps({"text": "lamp."}) + "\n")
    with pytest.raises(UserError, match=r"base-alone\.jsonl:1: no audio_codes; run: overtone codes"):
        spliced_clips.main(["--corpus", str(tmp_path)])
