"""Several recordings: distribution, stored results, duplicates and crashes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace

import pytest
import soundfile

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.clips.dnsmos import SoundRatings
from overtone.data_prep.parallel.process_pool import Failure, StoppedError, StopSignal
from overtone.data_prep.parallel.ray_pool import RayWorkers
from overtone.data_prep.parallel.worker_options import WorkerOptions
from overtone.data_prep.pipeline import all_recordings
from overtone.data_prep.pipeline.all_recordings import (
    RecordingTask,
    WorkerSetup,
    describe_crashes,
    list_batches,
    process_recordings,
)
from overtone.data_prep.pipeline.recording_results import Job
from overtone.data_prep.recordings.recording_files import RecordingSource, find_recordings
from overtone.data_prep.recordings.user_transcripts import UserTranscript
from overtone.data_prep.segmentation.clip_segmentation import Lengths
from overtone.finetune.errors import UserError
from tests.data_prep.pipeline.test_clip_selection import STANDARD

TEXT = UserTranscript(text="The night train to the north leaves from platform seven.")


@pytest.fixture
def tasks(tmp_path, one_sentence) -> list[RecordingTask]:
    """Two recordings and a copy of the first, of which only the copy has a transcript, and something that cannot be read."""
    folder = tmp_path / "in"
    folder.mkdir()
    soundfile.write(folder / "a.wav", one_sentence.samples, MASTER_RATE)
    shutil.copy(folder / "a.wav", folder / "copy.wav")
    soundfile.write(folder / "long.wav", one_sentence.samples[20_000:].repeat(1), MASTER_RATE)
    (folder / "lost.wav").symlink_to("nowhere")
    return [RecordingTask(source, TEXT if source.name != "a.wav" else None) for source in find_recordings(folder, "me", tmp_path / "out")]


@pytest.fixture
def setup(tmp_path) -> WorkerSetup:
    return WorkerSetup(Job(tmp_path / "out", Lengths(), None, None), tmp_path / "out" / ".stages", None, WorkerOptions(0))


def copy_takes(tasks: list[RecordingTask], names: str) -> list[RecordingTask]:
    """The same sound as recordings with these names, each with other bytes."""
    folder = tasks[0].source.path.parent.with_name("more")
    folder.mkdir()
    samples, rate = soundfile.read(tasks[0].source.path, dtype="float32")
    for number, name in enumerate(names):
        soundfile.write(folder / f"{name}.wav", samples * (1 - 0.01 * number), rate)
    return [RecordingTask(source, TEXT) for source in find_recordings(folder, "me", folder / "out")]


@dataclass(frozen=True)
class FailingScorer:
    """A rating model, and its own loaded form, that fails on the clips whose number is in `failing`."""

    failing: frozenset[int]
    digest: str = "judge-2.0"
    rated: list[int] = field(default_factory=list)

    def load(self, _device: str = "cpu") -> FailingScorer:
        return self

    def rate(self, *_: object) -> SoundRatings:
        self.rated.append(len(self.rated))
        if self.rated[-1] in self.failing:
            raise IndexError(f"clip {self.rated[-1]} is out of range")
        return SoundRatings(mos_speech=4.0, mos_overall=4.0, mos_background=4.0, mos_p808=4.0)


def test_a_crash_of_a_model_loses_one_recording_with_the_name_of_the_model(tasks, setup, capsys) -> None:
    setup = replace(setup, job=replace(setup.job, scorer=FailingScorer(frozenset({1, 2}))))
    with StopSignal() as stop:
        recordings, _ = process_recordings(copy_takes(tasks, "abc"), setup, STANDARD, stop)
    assert [one.refused for one in recordings] == ["", "crashed", ""]
    assert recordings[1].detail.endswith("IndexError: clip 2 is out of range, in the rating of sound by judge-2.0")
    (notice,) = describe_crashes(recordings)
    assert notice.recordings == ("b.wav",) and notice.text.startswith("1 recording lost by a crash: processing failed")
    capsys.readouterr()


def test_one_error_on_the_first_recordings_stops_the_run(tasks, setup, capsys) -> None:
    scorer = FailingScorer(frozenset(range(100)))
    setup = replace(setup, job=replace(setup.job, scorer=scorer))
    with pytest.raises(UserError, match="the first 3 recordings all failed with one error .*judge-2.0"), StopSignal() as stop:
        process_recordings(copy_takes(tasks, "abcde"), setup, STANDARD, stop)
    assert len(scorer.rated) == 6, "each of three recordings was tried twice"
    capsys.readouterr()


def test_a_duplicate_file_is_processed_once_from_the_copy_with_a_transcript(tasks, setup, capsys) -> None:
    with StopSignal() as stop:
        recordings, work = process_recordings(tasks, setup, STANDARD, stop)
    assert [(one.source.name, one.refused) for one in recordings] == [
        ("a.wav", "duplicate"),
        ("copy.wav", ""),
        ("long.wav", ""),
        ("lost.wav", "unreadable"),
    ]
    assert recordings[0].detail == "the same bytes as copy.wav"
    assert recordings[0].total == recordings[1].total > 0
    assert dict(work.computed) == {"speech": 2, "clips": 2}
    assert dict(work.model_loads) == {"vad": 1}
    assert "1 of 3 recordings were processed in earlier runs\n" in capsys.readouterr().out  # that which cannot be read
    with StopSignal() as stop:
        again, work = process_recordings(tasks, setup, STANDARD, stop)
    assert again == recordings
    assert (work.computed, dict(work.reused), work.model_loads) == ({}, {"speech": 2, "clips": 2}, {})


def test_a_stop_is_reported_with_the_number_of_processed_recordings(tasks, setup) -> None:
    with StopSignal() as stop:
        stop.requested = True
        with pytest.raises(StoppedError, match="1 of 3 recordings are processed"):
            process_recordings(tasks, setup, STANDARD, stop)


def test_a_recording_that_crashes_its_workers_is_rejected_with_its_known_length(tasks, setup, monkeypatch) -> None:
    """`test_process_pool` tests the crash itself."""
    lost = all_recordings._reject_crashed(tasks[2], setup, Failure("its process was killed by SIGKILL"))
    assert (lost.refused, lost.total) == ("crashed", 0)
    assert lost.detail == "processing failed twice, the second time alone: its process was killed by SIGKILL"
    elsewhere = replace(setup, workers=WorkerOptions(remote=RayWorkers(2, 0.0, setup.stages)))
    assert (
        all_recordings._reject_crashed(tasks[2], elsewhere, Failure("its workers died")).detail
        == "processing failed repeatedly: its workers died"
    )
    with StopSignal() as stop:
        heard, _ = process_recordings(tasks[2:3], setup, STANDARD, stop)
    assert all_recordings._reject_crashed(tasks[2], setup, Failure("")).total == heard[0].total > 0


def test_the_memory_of_a_worker_counts_all_its_models(setup) -> None:
    class Aligner:
        weight_bytes = 1 << 20

    plain = all_recordings._estimate_worker_memory(setup)
    aligning = replace(setup, job=replace(setup.job, aligner=Aligner(), encoder=None))
    checking = replace(setup, job=replace(setup.job, encoder=object()))
    assert all_recordings._estimate_worker_memory(aligning) == plain + all_recordings.LOADED * (1 << 20)
    assert all_recordings._estimate_worker_memory(checking) == plain + all_recordings.ENCODER_BYTES
    remote = replace(aligning, workers=WorkerOptions(remote=RayWorkers(2, 0.0, setup.stages)))
    assert all_recordings._estimate_worker_memory(remote) == all_recordings.WORKER_BYTES


def test_durations_are_estimated_from_file_sizes(tasks) -> None:
    task = tasks[1]
    assert task.estimated_seconds == pytest.approx(4.3 / 2, rel=0.1)  # 24 kHz in 16 bit is half of what is usual
    assert replace(task, source=replace(task.source, path=task.source.path.with_name("nothing.mp3"))).estimated_seconds == 0


@pytest.mark.parametrize(("hours", "counts"), [((1, 1, 1, 1, 1, 0.1, 0.01), [2, 2, 3]), ((1, 0.1), [2]), ((1, 2), [2, 0]), ((), [0])])
def test_on_a_cluster_no_more_long_recordings_than_workers_are_decoded_at_once(setup, tmp_path, monkeypatch, hours, counts) -> None:
    monkeypatch.setattr(RecordingTask, "estimated_seconds", property(lambda task: 3600 * float(task.source.name)))
    tasks = [RecordingTask(RecordingSource(tmp_path, str(one), "", "me"), None) for one in hours]
    assert list_batches(tasks, setup) == [tasks], "the local pool processes parts as they come"
    batches = list_batches(tasks, replace(setup, workers=WorkerOptions(remote=RayWorkers(2, 0.0, tmp_path))))
    assert [len(batch) for batch in batches] == counts
    assert [task for batch in batches for task in batch] == sorted(tasks, key=lambda task: -task.estimated_seconds)
