"""What a data set's folder holds, and in which order it comes to hold it."""

from __future__ import annotations

import json
import os

import pytest

from data_prep import dataset, judge
from data_prep.audio import MASTER_RATE
from data_prep.recording import Recording
from data_prep.vad import Region
from finetune import files
from finetune.errors import UserError
from tests.data_prep.test_judge import STANDARD, clip, recording


def written(out, *clips, share=0.0):
    speech = tuple(Region(one.start, one.stop) for one in clips)
    heard = Recording(recording().source, 600 * MASTER_RATE, speech, clips)
    for one in clips:
        files.write_bytes(out / one.audio, b"sound")
    return dataset.write(out, [heard], judge.judge([heard], STANDARD), share, {"preset": "default"})


def test_every_clip_stands_in_one_manifest_and_can_be_heard(tmp_path) -> None:
    summary = written(tmp_path, clip(0), clip(1, snr_db=3.0), clip(2), share=0.3)
    named = {name: [json.loads(line)["id"] for line in (tmp_path / name).read_text().splitlines()] for name in MANIFESTS}
    assert named == {"train.jsonl": ["aa_0"], "val.jsonl": ["aa_2"], "rejects.jsonl": ["aa_1"]}
    assert len(list(tmp_path.glob("clips/aa/*.flac"))) == 3
    assert (summary.kept_seconds, summary.rejected_seconds, summary.non_speech_seconds) == (10, 5, 585)
    assert json.loads((tmp_path / "summary.json").read_text())["settings"] == {"preset": "default"}


MANIFESTS = ("train.jsonl", "val.jsonl", "rejects.jsonl")


def test_clips_that_nothing_names_any_more_go_after_the_manifests(tmp_path) -> None:
    written(tmp_path, clip(0), clip(1))
    operations = []
    with files.watch(lambda operation, path: operations.append((operation, path.name))):
        written(tmp_path, clip(0))
    assert [path.name for path in tmp_path.glob("clips/aa/*")] == ["aa_0.flac"]
    last_manifest = max(index for index, (operation, name) in enumerate(operations) if operation == "rename" and name in MANIFESTS)
    assert last_manifest < min(index for index, (operation, _) in enumerate(operations) if operation == "remove")


def test_two_runs_in_one_folder_are_refused_and_a_killed_one_is_cleaned_up_after(tmp_path) -> None:
    (tmp_path / "clips" / "aa").mkdir(parents=True)
    left = tmp_path / "clips" / "aa" / ".a.flac.tmp-1234"
    left.write_bytes(b"half")
    with dataset.owned(tmp_path):
        assert not left.exists()
        with pytest.raises(UserError, match=f"belongs to a run that is going on .process {os.getpid()}"), dataset.owned(tmp_path):
            pass
    with dataset.owned(tmp_path):
        pass
