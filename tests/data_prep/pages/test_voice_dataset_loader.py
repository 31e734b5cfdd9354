"""A dataset folder is read completely, and broken files in it are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.data_prep.pages import voice_dataset_loader
from overtone.finetune.errors import UserError
from tests.data_prep.example_clips import QUALITY, clip, dataset


def written(folder: Path, train: list[dict], rejects: list[dict]) -> Path:
    for name, lines in {"train.jsonl": train, "val.jsonl": [], "rejects.jsonl": rejects}.items():
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "summary.json").write_text(dataset(folder, [clip("a")], []).summary.model_dump_json())
    return folder


ROW = {"id": "a", "audio": "clips/a.flac", "text": "Hello.", "duration": 2.0, "start": 1.0, "split": "val", "audio_codes": [[1] * 16]}
REJECT = {"source": "x.wav", "start": 1.0, "end": 2.5, "stage": "clip", "reasons": ["noisy"], "id": "b", "audio": "clips/b.flac"}


def test_rows_and_rejects_become_clips(tmp_path) -> None:
    found = voice_dataset_loader.read_dataset(written(tmp_path, [ROW], [REJECT | {"quality": QUALITY}]))
    (kept,), (lost,) = found.kept, found.rejected
    assert (kept.id, kept.speaker, kept.source, kept.seconds, kept.stage, kept.reasons) == ("a", "", "clips/a.flac", 2.0, "val", ())
    assert (lost.id, lost.audio, lost.seconds, lost.reasons, lost.text) == ("b", "clips/b.flac", 1.5, ("noisy",), "")
    assert lost.quality is not None and lost.quality.snr_db == 40.0


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("summary.json", None, "its run is not complete; create it with"),
        ("summary.json", "{", "not a summary of overtone voice"),
        ("summary.json", "{}", "not a summary of overtone voice"),
        ("train.jsonl", None, "train.jsonl does not exist"),
        ("train.jsonl", "[]\n", "train.jsonl:1: expected a JSON object"),
        ("train.jsonl", '{"audio": "../a.flac", "text": "x"}\n', "train.jsonl:1: audio: '../a.flac' leads outside"),
        ("rejects.jsonl", "\n" + json.dumps(REJECT | {"audio": "/etc/passwd"}) + "\n", "rejects.jsonl:2: not a row of rejects.jsonl"),
        ("rejects.jsonl", json.dumps(REJECT | {"reasons": []}) + "\n", "rejects.jsonl:1: not a row of rejects.jsonl"),
    ],
)
def test_missing_broken_or_outside_files_are_refused(tmp_path, name, content, complaint) -> None:
    written(tmp_path, [ROW], [])
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as refused:
        voice_dataset_loader.read_dataset(tmp_path)
    assert complaint in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match="is not a folder; create a dataset with: overtone voice"):
        voice_dataset_loader.read_dataset(tmp_path / "absent")
