"""A page shows how far a job is, and what ended it, as its log says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from overtone.data_prep.pipeline.progress import format_progress
from overtone.finetune.data import index_building
from overtone.studio.jobs import job_records
from overtone.studio.jobs.job_progress import LATEST, LogFollower, clean_log, find_share, read_progress
from overtone.studio.jobs.job_records import JobCommand, JobEnd, JobState, StudioJob

TRAINING = "$ overtone train\n  steps     100 of them\nstep 5/20  loss 1.25  30 s left\nstep 5: validation loss 3.0000\n"


def make_job(folder: Path, log: str, state: JobState = "running", verb: str = "train") -> StudioJob:
    (folder / job_records.LOG).write_bytes(log.encode("utf-8", "surrogateescape"))
    return StudioJob(folder, JobCommand(verb=verb, words=[]), state, None, JobEnd(code=1, stopped=False, ended=0), None, is_own=True)


def test_the_time_left_is_shown_while_a_job_runs(tmp_path: Path) -> None:
    progress = read_progress(make_job(tmp_path, TRAINING))
    assert progress.text == "step 5/20  loss 1.25  30 s left" and progress.share == 0.25


def test_old_progress_is_not_shown_while_the_job_does_something_else(tmp_path: Path) -> None:
    progress = read_progress(make_job(tmp_path, TRAINING + "exporting\n" * LATEST))
    assert progress.text == "exporting" and progress.share is None
    progress = read_progress(make_job(tmp_path, "loading\n12 rows are left out of 3/4\n"))
    assert progress.text == "12 rows are left out of 3/4" and progress.share is None


def test_the_verbs_print_these_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_share(f"[1/4] a [3/3].wav: 2 clips · {format_progress(60, 240, 2.0, Counter(too_short=3))}") == 0.25
    assert find_share(f"[1/4] clips encoded · {format_progress(60, 400_000, 2.0, Counter())}") == 0.25
    monkeypatch.setattr(index_building, "SECONDS_BETWEEN_REPORTS", -1)
    index_building._Reports(tmp_path).advance(0.5)
    assert find_share(capsys.readouterr().err.rstrip("\n")) == 0.5


@pytest.mark.parametrize("state", ["failed", "lost"])
def test_the_last_error_is_shown_of_a_failed_job(state: JobState, tmp_path: Path) -> None:
    log = TRAINING + "error: no room; free some\nmore\n"
    assert read_progress(make_job(tmp_path, log, state)).text == "error: no room; free some"
    assert read_progress(make_job(tmp_path, "", state)).text != ""


@pytest.mark.parametrize(
    ("line", "share"),
    [
        ("step 5/20  loss 1.25  0 s left", 0.25),
        ("step 0/0  loss 1  0 s left", None),
        ("step 9/3  loss 1  0 s left", None),
        ("step 5/20  loss 1.25  30 s left for tea", None),
        ("[1/4] a.wav: 2 clips", None),
        ("indexing a b.jsonl: 25%, 1,200 s left", 0.25),
        ("12.5 % done", None),
        ("3/4", None),
    ],
)
def test_the_share_of_a_line(line: str, share: float | None) -> None:
    assert find_share(line) == share


def test_the_address_of_a_server(tmp_path: Path) -> None:
    log = "$ overtone serve --model a\nloading\nserve: http://127.0.0.1:7861   (stop with Ctrl-C)\n"
    assert read_progress(make_job(tmp_path, log, verb="serve")).address == "http://127.0.0.1:7861"
    assert read_progress(make_job(tmp_path, log, verb="train")).address == ""
    assert read_progress(make_job(tmp_path, log, "done", "serve")).address == ""
    assert read_progress(make_job(tmp_path, "serve: javascript:alert(1)", verb="serve")).address == ""


def test_a_log_is_text_without_control_characters() -> None:
    assert clean_log(b"a\r10%\r20%\nb\x1b[31m\xff\n") == "20%\nb\\x1b[31m\ufffd\n"


def test_a_log_is_followed_line_by_line(tmp_path: Path) -> None:
    job = make_job(tmp_path, "one\ntw")
    follower = LogFollower(job)
    assert follower.read() == ("one\n", "tw") and follower.read() is None
    with (tmp_path / job_records.LOG).open("ab") as log:
        log.write(b"o\nthree\n")
    assert follower.read() == ("two\nthree\n", "")
    make_job(tmp_path, "x" * 2 * job_records.TAIL + "\nend\n")
    assert LogFollower(job).read() == ("x" * (job_records.TAIL - 5) + "\nend\n", "")
    (tmp_path / job_records.LOG).unlink()
    (tmp_path / job_records.LOG).symlink_to("/etc/passwd")
    assert LogFollower(job).read() is None and read_progress(job).text == ""
