"""The speakers of a dataset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.finetune.config import resolve
from overtone.finetune.errors import UserError
from overtone.recipes.csm.options import Options
from overtone.recipes.speech.dataset_speakers import collect_clips, require_trained


def test_a_speaker_only_of_the_validation_data_is_refused() -> None:
    with pytest.raises(UserError, match="speaker 'cid' is not trained: the training data has only ann, bob"):
        require_trained("cid", {"bob": 1, "ann": 2})


def test_clips_frames_and_languages_are_counted_per_speaker(tmp_path: Path) -> None:
    rows = [("Bob", "de", 3), ("Ann", None, 4), ("bob", "English", 5), ("BOB", "de", 1)]
    text = "".join(json.dumps({"speaker": name, "language": language, "n": n}) + "\n" for name, language, n in rows)
    text += json.dumps({"speaker": "Ann", "n": 4, "time_shift": 0.04}) + "\n"  # a copy is no more speech
    (tmp_path / "train.jsonl").write_text(text)
    config = resolve("csm", Options, [], [("data.train", json.dumps(str(tmp_path / "train.jsonl")))])
    found = collect_clips(config.data, "csm", None, lambda row: row["n"])
    assert [*found] == ["ann", "bob"] and (found["bob"].clips, found["bob"].frames) == (3, 9)
    assert (found["ann"].clips, found["ann"].frames) == (1, 4)
    assert found["bob"].languages == {"german": 2, "english": 1} and found["ann"].languages == {"auto": 2}


def test_a_run_without_data_is_refused() -> None:
    with pytest.raises(UserError, match="data.train is not set"):
        collect_clips(resolve("csm", Options, [], []).data, "csm", None, len)
