"""A long recording is processed in parts: the files of the whole, with any number of workers, after a stop and after a kill.

The quick tests divide a minute into parts of seven seconds; the slow ones ten minutes into parts of one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tracemalloc
from math import inf
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio import sandboxed_decoder
from overtone.data_prep.audio.waveform import MASTER_RATE, Audio
from overtone.data_prep.cli import voice
from overtone.data_prep.pipeline import all_recordings, one_recording
from overtone.data_prep.pipeline.one_recording import begin_part
from overtone.data_prep.pipeline.recording_results import DecodedPart, DividedRecording, Job
from overtone.data_prep.pipeline.recording_run import RecordingRun
from overtone.data_prep.pipeline.stage_cache import Stages
from overtone.data_prep.pipeline.worker_models import Models
from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.segmentation import recording_parts, silero_network
from overtone.data_prep.segmentation.clip_segmentation import Lengths
from overtone.data_prep.segmentation.vad import Region
from overtone.finetune.storage import files
from tests.data_prep.test_voice_interrupted import ROOT, contents, count_stored, kill_group, wait_until_stored

SECONDS = 7.0
PAUSES = (0.6, 2.6, 0.9, 1.4)


def write_recording(folder: Path, railway: Audio, said: list[dict[str, object]], minutes: float) -> Path:
    """Sentences of the sample with pauses of four lengths on the noise of a room, and their transcript."""
    chance, rows, pieces, length = np.random.default_rng(0), [], [], 0
    while length < minutes * 60 * MASTER_RATE:
        one = said[len(rows) % len(said)]
        sentence = railway.cut(int((one["start"] - 0.1) * MASTER_RATE), int((one["end"] + 0.1) * MASTER_RATE)).samples
        start, length = length, length + len(sentence)
        rows.append({"start": start / MASTER_RATE + 0.1, "end": length / MASTER_RATE - 0.1, "text": f"{one['text']} {len(rows)}"})
        pause = np.zeros(int(PAUSES[len(rows) % len(PAUSES)] * MASTER_RATE), np.float32)
        length += len(pause)
        pieces += [sentence * np.float32(chance.uniform(0.5, 1.0)), pause]
    folder.mkdir(parents=True)
    noise = 1e-4 * chance.standard_normal(length, np.float32)
    soundfile.write(folder / "talk.flac", np.concatenate(pieces) + noise, MASTER_RATE)
    files.write_json(folder / "talk.transcript.json", rows)
    return folder


@pytest.fixture(scope="module")
def minute(railway, said, tmp_path_factory) -> Path:
    return write_recording(tmp_path_factory.mktemp("minute") / "in", railway, said, 1.0)


def run(recordings: Path, out: Path, seconds: float, workers: int = 0, whisper: Path | None = None, checks: bool = False) -> int:
    """`checks`: the Whisper checks the transcript instead of writing one."""
    named = [] if whisper is None else [str(whisper), "--language", "en"]
    text = ["--transcripts", *(["--check-with", *named] if named else [])] if checks or not named else ["--whisper", *named]
    options = [*text, "--speaker", "me", "--preset", "keep-all", "--workers", str(workers)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording_parts, "PART_SECONDS", seconds)
        return voice.main([str(recordings), "--out", str(out), *options])


@pytest.fixture(scope="module")
def undivided(minute, tmp_path_factory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undivided") / "out"
    assert run(minute, out, inf) == 0
    assert count_stored(out, "clips") == 1
    return contents(out)


def list_computed(out: Path) -> dict[str, int]:
    return json.loads((out / "run.json").read_text())["computed"]


def test_the_parts_give_the_files_of_the_whole_recording(minute, undivided, tmp_path, capsys) -> None:
    """Each part ends at a pause of more than two seconds, which no clip spans."""
    assert run(minute, tmp_path / "out", SECONDS) == 0
    assert contents(tmp_path / "out") == undivided
    count = count_stored(tmp_path / "out", "clips")
    assert count > 4
    assert list_computed(tmp_path / "out") == {"speech": 1, "levels": 1, "clips": count}
    printed = capsys.readouterr().out
    assert all(f"[0/1] talk.flac: part {number} of {count}, " in printed for number in range(1, count + 1))
    assert "[1/1] talk.flac: " in printed
    assert not list((tmp_path / "out" / ".stages" / "samples").iterdir()), "the samples are deleted once all parts are finished"
    assert run(minute, tmp_path / "out", SECONDS) == 0
    assert list_computed(tmp_path / "out") == {}


def test_a_stop_keeps_the_finished_parts_and_the_samples(minute, undivided, tmp_path) -> None:
    out, pressed = tmp_path / "out", []

    def press(operation: str, path: Path) -> None:
        if operation == "rename" and path.parent.name == "clips" and count_stored(out, "clips") == 2 and not pressed:
            pressed.append(path)
            os.kill(os.getpid(), signal.SIGINT)

    with files.watch(press):
        assert run(minute, out, SECONDS) == 130
    done = count_stored(out, "clips")
    assert done == 3 and not (out / "train.jsonl").exists()
    assert len(list((out / ".stages" / "samples").iterdir())) == 1
    assert run(minute, out, SECONDS) == 0
    assert contents(out) == undivided
    assert list_computed(out) == {"clips": count_stored(out, "clips") - done}


def test_a_part_that_crashes_rejects_the_recording_until_the_next_run(minute, undivided, tmp_path, monkeypatch, capsys) -> None:
    whole = all_recordings.prepare_part

    def crash(recording, divided, part):
        if part == divided.parts[1]:
            raise MemoryError
        return whole(recording, divided, part)

    with monkeypatch.context() as broken:
        broken.setattr(all_recordings, "prepare_part", crash)
        assert run(minute, tmp_path / "out", SECONDS) != 0
    assert "the part from " in (tmp_path / "out" / "rejects.jsonl").read_text()
    assert run(minute, tmp_path / "out", SECONDS) == 0
    assert contents(tmp_path / "out") == undivided
    assert set(list_computed(tmp_path / "out")) == {"clips"}, "the clips of a rejected recording were deleted, its texts are stored"


def test_samples_of_earlier_runs_are_deleted_unless_they_are_needed(tmp_path) -> None:
    stages = tmp_path / ".stages"
    for name in ("needed", "other", ".needed.tmp-0123"):
        (stages / "samples" / name).mkdir(parents=True)
    setup = all_recordings.WorkerSetup(None, stages, None, None)
    all_recordings._remove_samples(setup, {"needed"})
    assert [path.name for path in (stages / "samples").iterdir()] == ["needed"]


def test_a_plain_text_of_a_long_recording_is_not_divided(minute, tmp_path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "talk.flac").symlink_to(minute / "talk.flac")
    (tmp_path / "in" / "talk.txt").write_text("All of it.")
    run(tmp_path / "in", tmp_path / "out", SECONDS)  # the clip is too long, and no other is there
    assert count_stored(tmp_path / "out", "clips") == 1
    assert not (tmp_path / "out" / ".stages" / "samples").exists()


@pytest.fixture(scope="module")
def says(whisper_that_says) -> Path:
    return whisper_that_says("The night train leaves from platform seven.")


@pytest.mark.parametrize("checks", [False, True])
def test_parts_are_begun_while_the_recording_is_decoded(minute, says, tmp_path, monkeypatch, checks) -> None:
    """The files are those of a run that begins no part early, and nothing is transcribed twice."""
    with monkeypatch.context() as late:
        late.setattr(
            recording_parts, "find_next_part", lambda *_: None
        )  # a busy machine decodes so slowly that parts are begun by themselves
        assert run(minute, tmp_path / "late", SECONDS, whisper=says, checks=checks) == 0
    begun, decoded, begin, examine = [], [], all_recordings.begin_part, all_recordings.examine_recording

    def note_begin(recording, part):
        begun.append(part.place)
        begin(recording, part)

    def note_end(recording):
        decoded.append(examine(recording))
        return decoded[-1]

    monkeypatch.setattr(all_recordings, "begin_part", note_begin)
    monkeypatch.setattr(all_recordings, "examine_recording", note_end)
    monkeypatch.setattr(sandboxed_decoder, "HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(silero_network, "BLOCK", 64)
    assert run(minute, tmp_path / "early", SECONDS, whisper=says, checks=checks) == 0
    (divided,) = decoded
    assert len(begun) > 2 and begun == divided.parts[: len(begun)]
    assert contents(tmp_path / "early") == contents(tmp_path / "late")
    before, early = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("late", "early"))
    assert early["computed"] == before["computed"] and early["computed"]["words"] == len(divided.parts)
    assert early["reused"] == {"words": len(begun)} and before["reused"] == {}


def test_parts_that_end_elsewhere_once_the_transcript_is_moved_give_the_same_files(minute, says, tmp_path, monkeypatch) -> None:
    """A delay of the transcript is known once the recording is decoded: parts may have been begun in vain."""
    divided, examine = [], all_recordings.examine_recording

    def note_end(recording):
        divided.append(examine(recording))
        return divided[-1]

    with monkeypatch.context() as late:
        late.setattr(all_recordings, "examine_recording", note_end)
        late.setattr(recording_parts, "find_next_part", lambda *_: None)
        assert run(minute, tmp_path / "late", SECONDS, whisper=says, checks=True) == 0
    moved = [Region(part.stop - MASTER_RATE, part.stop + MASTER_RATE) for part in divided[0].parts]
    monkeypatch.setattr(one_recording, "_plan_early", lambda _: lambda _length: moved)
    monkeypatch.setattr(sandboxed_decoder, "HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(silero_network, "BLOCK", 64)
    assert run(minute, tmp_path / "early", SECONDS, whisper=says, checks=True) == 0
    assert contents(tmp_path / "early") == contents(tmp_path / "late")
    before, early = (json.loads((tmp_path / name / "run.json").read_text())["computed"]["words"] for name in ("late", "early"))
    assert before < early


def test_a_part_whose_samples_are_gone_is_not_begun(tmp_path) -> None:
    """Decoding failed meanwhile; the recording is rejected for that."""
    source = RecordingSource(tmp_path / "talk.flac", "talk.flac", "0" * 64, "me")
    part = DecodedPart(Region(0, MASTER_RATE), [Region(0, MASTER_RATE)], tmp_path / "gone")
    with Models("never loaded", "cpu", tmp_path) as models:
        begin_part(RecordingRun(source, None, Job(tmp_path, Lengths(), None, {}), Stages(tmp_path), models), part)
        assert models.loads == {}


def test_a_part_waits_for_its_begin_and_no_part_is_begun_twice() -> None:
    recording = all_recordings.RecordingTask(RecordingSource(Path("talk.flac"), "talk.flac", "0" * 64, "me"), None)
    places = [Region(0, 10), Region(10, 20)]
    queue: list[all_recordings.Task] = []
    begun = all_recordings._BegunParts(queue)
    for _ in range(2):  # a worker died, and decoded the recording again
        begun.add(recording, DecodedPart(places[0], [], Path("samples")))
    (first,) = queue
    divided = DividedRecording(None, None, places, None)
    begun.queue_parts([all_recordings.PartTask(recording, divided, number) for number in (0, 1)])
    assert [task.number for task in queue[1:]] == [1]
    begun.finish(first)
    assert [task.number for task in queue[1:]] == [1, 0]


@pytest.fixture(scope="module")
def long_recording(railway, said, tmp_path_factory) -> Path:
    return write_recording(tmp_path_factory.mktemp("long") / "in", railway, said, 25.0)


@pytest.fixture(scope="module")
def ten_minutes(railway, said, tmp_path_factory) -> Path:
    return write_recording(tmp_path_factory.mktemp("ten") / "in", railway, said, 10.0)


BY_MINUTES = """
import sys
from overtone.data_prep.cli import voice
from overtone.data_prep.segmentation import recording_parts
recording_parts.PART_SECONDS = 60.0
sys.exit(voice.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_run_killed_inside_a_recording_is_resumed_there(ten_minutes, tmp_path) -> None:
    assert run(ten_minutes, tmp_path / "whole", inf) == 0
    expected = contents(tmp_path / "whole")
    options = ["--transcripts", "--speaker", "me", "--preset", "keep-all", "--workers", "2"]
    out = tmp_path / "out"
    command = [sys.executable, "-c", BY_MINUTES, str(ten_minutes), "--out", str(out), *options]
    for count in (1, 5):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        wait_until_stored(process, out, "clips", count)
        kill_group(process)
    done = count_stored(out, "clips")
    assert run(ten_minutes, out, 60.0) == 0
    assert contents(out) == expected
    assert list_computed(out) == {"clips": count_stored(out, "clips") - done}
    assert run(ten_minutes, tmp_path / "alone", 60.0) == 0
    assert contents(tmp_path / "alone") == expected, "with one worker as with two"


@pytest.mark.slow
def test_a_run_killed_while_parts_are_begun_gives_the_same_files(ten_minutes, says, tmp_path) -> None:
    """With one worker and with two, whose second one transcribes while the first one decodes."""
    assert run(ten_minutes, tmp_path / "alone", 60.0, whisper=says) == 0
    expected, out = contents(tmp_path / "alone"), tmp_path / "out"
    options = ["--whisper", str(says), "--language", "en", "--speaker", "me", "--preset", "keep-all", "--workers", "2"]
    command = [sys.executable, "-c", BY_MINUTES, str(ten_minutes), "--out", str(out), *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until_stored(process, out, "words", 2)
    kill_group(process)
    print("stored before the kill:", {stage: count_stored(out, stage) for stage in ("speech", "words", "clips")})
    assert run(ten_minutes, out, 60.0, workers=2, whisper=says) == 0
    assert contents(out) == expected


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length(railway, said, long_recording, tmp_path) -> None:
    """Arrays of numpy; both recordings are longer than what the loudness is measured on."""
    half, peaks = write_recording(tmp_path / "half", railway, said, 12.5), []
    for folder in (half, long_recording):
        tracemalloc.start()
        assert run(folder, tmp_path / f"out{len(peaks)}", 60.0) == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < 2 * 25 * 60 * MASTER_RATE * 4
