"""The WER of data files during training: which rows are measured, and how the rate is computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import LOG, MEASURED, read_log
from overtone.finetune.recipe import Answer
from overtone.finetune.storage import files
from overtone.recipes.whisper.inference import wer_during_training
from tests.recipes.whisper.tiny_whisper import PROCESSOR, TEXTS, make_config, train_here, write_clips, write_rows


def test_the_rate_is_of_all_words_of_all_files() -> None:
    answers = [Answer("", numbers={"words": 9.0, "wrong_words": 1.0}), Answer("", numbers={"words": 1.0, "wrong_words": 1.0})]
    found = wer_during_training.measure(answers)
    assert found.metrics == {"wer": 20.0} and [one["wer"] for one in found.details] == [pytest.approx(100 / 9), 100.0]


def test_transcripts_are_compared_with_the_texts(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clips(tmp_path)
    transcripts = [TEXTS[0].upper(), "Please hold the lime Asterisk", "One", "Press two three"]
    monkeypatch.setattr(wer_during_training, "transcribe_clips", lambda _, clips: transcripts[: len(clips)])
    (answer,) = wer_during_training.sample(exported, [str(path)])
    assert answer.numbers == {"words": 10.0, "wrong_words": 2.0}
    assert answer.text.startswith("'Please hold the line, Asterisk.' → 'Please hold the lime Asterisk'")


def test_the_plan_depends_on_the_content_of_the_files(base: Path, tmp_path: Path) -> None:
    config = make_config(tmp_path, base, ("sample.every", "2"), ("sample.prompts", json.dumps([str(tmp_path / "val.jsonl")])))
    prepared = wer_during_training.prepare(config)
    assert prepared.names[0] == "wer" and prepared.settings["data"] == {str(tmp_path / "val.jsonl"): files.digest(tmp_path / "val.jsonl")}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"audio": "gone.flac", "text": "One."}, r"val.jsonl:1: .*gone.flac does not exist"),
        ({"audio": "clips/0.flac"}, r"val.jsonl:1: text = None"),
        ({"text": "One."}, r'val.jsonl:1: "audio" must be the path'),
        ({"audio": "clips/0.flac", "text": "One.", "language": "xx"}, r"val.jsonl:1: the language 'xx'"),
    ],
)
def test_a_row_that_cannot_be_measured_is_named_with_its_line(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_clips(tmp_path)
    path = write_rows(tmp_path / "val.jsonl", [{"language": "english"} | row])
    with pytest.raises(UserError, match=message):
        wer_during_training.read_rows(path, PROCESSOR)


def test_files_without_rows_are_refused_and_segments_are_a_text(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.jsonl", write_rows(tmp_path / "empty.jsonl", [])):
        with pytest.raises(UserError, match=f"sample.prompts: {path}"):
            wer_during_training.read_rows(path, PROCESSOR)
    segments = [{"start": 0, "end": 1, "text": "Good"}, {"start": 1, "end": 2, "text": "day."}]
    assert wer_during_training.read_text({"segments": segments}) == "Good day."
    assert wer_during_training.read_text({"text": None, "segments": segments}) == "Good day."


def test_rows_are_transcribed_in_groups_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = wer_during_training.read_rows(write_clips(tmp_path), PROCESSOR)
    groups = list[int]()

    def transcribe(_: object, clips: list[object]) -> list[str]:
        groups.append(len(clips))
        return [f"{len(groups)}.{number}" for number in range(len(clips))]

    monkeypatch.setattr(wer_during_training, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(wer_during_training, "transcribe_clips", transcribe)
    assert [*wer_during_training.transcribe_rows(None, rows, 80)] == ["1.0", "1.1", "1.2", "2.0"] and groups == [3, 1]


@pytest.mark.slow
@pytest.mark.ci
def test_a_run_keeps_the_checkpoint_with_the_lowest_rate(base: Path, tmp_path: Path) -> None:
    sampled = {"sample.every": "1", "sample.prompts": json.dumps([str(tmp_path / "val.jsonl")]), "checkpoint.every": "1"}
    run = train_here(tmp_path, base, *sampled.items(), ("checkpoint.best_by", "sample/wer"))
    measured = [event for event in read_log(run / LOG) if event["event"] == MEASURED]
    assert [event["step"] for event in measured] == [1, 2] and all(event["sample/wer"] > 0 for event in measured)
