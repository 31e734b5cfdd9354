"""The files of a dataset folder and the order in which they are written."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from functools import partial

import numpy as np
import pytest

from overtone.data_prep.audio.waveform import MASTER_RATE, Audio, encode_flac
from overtone.data_prep.dataset import voice_dataset_writer
from overtone.data_prep.pipeline import clip_selection
from overtone.data_prep.pipeline.recording_results import PreparedRecording
from overtone.data_prep.segmentation.vad import Region
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from tests.data_prep.pipeline.test_clip_selection import STANDARD, clip, recording

OTHER = "Another sentence that takes five seconds, as it should."


def written(out, *clips, share=0.0):
    return write(out, heard(out, *clips), share)


def heard(out, *clips) -> PreparedRecording:
    """A recording of these clips, whose files are there."""
    for one in clips:
        noise = np.random.default_rng(one.start).normal(0, 0.1, one.stop - one.start).astype(np.float32)
        files.write_bytes(out / one.audio, encode_flac(Audio(noise, MASTER_RATE)))
    return PreparedRecording(recording().source, 600 * MASTER_RATE, tuple(Region(one.start, one.stop) for one in clips), clips)


def write(out, recording, share):
    judged = clip_selection.judge_clips([recording], STANDARD, out)
    return voice_dataset_writer.write_dataset(out, [recording], judged, share, {"preset": "default"}, [], {}, {})


def test_every_clip_is_in_one_manifest_and_has_a_file(tmp_path) -> None:
    summary = written(tmp_path, clip(0), clip(1, snr_db=3.0), clip(2, text=OTHER), share=0.3)
    named = {name: [json.loads(line)["id"] for line in (tmp_path / name).read_text().splitlines()] for name in MANIFESTS}
    assert named == {"train.jsonl": ["aa_0"], "val.jsonl": ["aa_2"], "rejects.jsonl": ["aa_1"]}
    assert len(list(tmp_path.glob("clips/aa/*.flac"))) == 3
    assert [path.name for path in tmp_path.glob("refs/*")] == ["me.wav"]
    assert (summary.kept_seconds, summary.rejected_seconds, summary.non_speech_seconds) == (10, 5, 585)
    assert json.loads((tmp_path / "summary.json").read_text())["settings"] == {"preset": "default"}


MANIFESTS = ("train.jsonl", "val.jsonl", "rejects.jsonl")


def test_unreferenced_clips_are_removed_after_the_manifests_are_written(tmp_path) -> None:
    written(tmp_path, clip(0), clip(1, text=OTHER))
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
    with voice_dataset_writer.lock_dataset(tmp_path):
        assert not left.exists()
        with (
            pytest.raises(UserError, match=f"is in use by a running process .process {os.getpid()}"),
            voice_dataset_writer.lock_dataset(tmp_path),
        ):
            pass
    with voice_dataset_writer.lock_dataset(tmp_path):
        pass


def test_a_guard_clip_between_training_and_validation_is_rejected_and_counted(tmp_path) -> None:
    texts = [f"{OTHER} {number}" for number in range(20)]
    summary = written(tmp_path, *(clip(number, text=text) for number, text in enumerate(texts)), share=0.05)
    (reject,) = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert (reject["id"], reject["reasons"], reject["text"]) == ("aa_17", ["guard"], texts[17])
    assert reject["detail"] == "less than 5 s from a validation clip of the same recording"
    assert (tmp_path / reject["audio"]).is_file()
    assert (summary.train, summary.val, summary.kept_seconds, summary.rejected_seconds) == (17, 2, 95, 5)


class Killed(BaseException):
    """Passes through everything that catches errors."""


def test_after_a_kill_before_any_disk_operation_the_next_write_gives_the_same_files(tmp_path) -> None:
    clips = [clip(1, text=OTHER), clip(2, text=f"{OTHER} Then"), clip(3, snr_db=3.0)]
    written(tmp_path / "whole", *clips, share=0.3)
    written(tmp_path / "old", clip(0), clips[0])
    recording = heard(tmp_path / "old", *clips)
    judged = clip_selection.judge_clips([recording], STANDARD, tmp_path / "old")
    for moment in itertools.count():
        out = shutil.copytree(tmp_path / "old", tmp_path / str(moment))
        work = partial(voice_dataset_writer.write_dataset, out, [recording], judged, 0.3, {"preset": "default"}, [], {}, {})
        if not killed(work, moment):
            break
        for name in MANIFESTS:
            assert all((out / json.loads(line)["audio"]).is_file() for line in (out / name).read_text().splitlines())
        with voice_dataset_writer.lock_dataset(out):
            work()
        assert contents(out) == contents(tmp_path / "whole")
    assert moment > 20


def killed(work, moment: int) -> bool:
    """Whether there was a change with the number `moment`, before which to die."""
    changes = itertools.count()

    def die(_operation, _path) -> None:
        if next(changes) == moment:
            raise Killed

    try:
        with files.watch(die):
            work()
    except Killed:
        return True
    return False


def contents(out) -> dict[str, bytes]:
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != ".owner"}
