"""Process all recordings of a dataset (decode, detect speech, transcribe, cut): reuses stored results, distributes the rest to workers."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data_prep.parallel.devices import use_one_thread
from data_prep.parallel.executor import WorkerOptions, distribute_items
from data_prep.parallel.process_pool import Failure, StopSignal
from data_prep.pipeline import clip_selection
from data_prep.pipeline.clip_selection import SelectionCriteria
from data_prep.pipeline.one_recording import DetectedSpeech, Job, PreparedRecording, load_stored_speech, prepare_recording, refuse_recording
from data_prep.pipeline.progress import RecordingProgress
from data_prep.pipeline.stage_cache import NotStoredError, Stages, StoredStages
from data_prep.pipeline.worker_models import Models
from data_prep.recordings.recording_files import RecordingSource
from data_prep.recordings.user_transcripts import UserTranscript
from data_prep.transcription import whisper_engine

BYTES_PER_SECOND = {".wav": 96_000, ".aif": 96_000, ".aiff": 96_000, ".flac": 50_000}
"""Approximate; other suffixes are compressed formats."""
COMPRESSED_BYTES_PER_SECOND = 16_000
WORKER_BYTES = 3 << 29
"""Memory of a worker without Whisper: torch, voice activity detection, working copies of an hour of audio. Samples are memory-mapped."""
LOADED = 3
"""Memory of Whisper as a multiple of its file size: 16-bit weights are read and converted to 32 bits."""


class StoppedError(Exception):
    """The user stopped the run before all recordings were processed."""


@dataclass(frozen=True)
class RecordingTask:
    """One recording to process, with its transcript if it has one."""

    source: RecordingSource
    transcript: UserTranscript | None

    @property
    def estimated_seconds(self) -> float:
        """Estimated duration from the file size: to start with the longest, and to estimate the time left."""
        size = self.source.path.stat().st_size if self.source.path.is_file() else 0
        return size / BYTES_PER_SECOND.get(self.source.path.suffix.lower(), COMPRESSED_BYTES_PER_SECOND)


@dataclass(frozen=True)
class WorkerSetup:
    """Configuration of the workers."""

    job: Job
    stages: Path
    whisper: str | None
    workers: WorkerOptions


@dataclass
class WorkCounts:
    """Stage and model counts of one run, for run.json."""

    computed: Counter[str] = field(default_factory=Counter)
    reused: Counter[str] = field(default_factory=Counter)
    model_loads: Counter[str] = field(default_factory=Counter)

    def add(self, other: WorkCounts) -> None:
        self.computed += other.computed
        self.reused += other.reused
        self.model_loads += other.model_loads


def process_recordings(
    tasks: Sequence[RecordingTask], setup: WorkerSetup, standard: SelectionCriteria, stop: StopSignal
) -> tuple[list[PreparedRecording], WorkCounts]:
    """Process all recordings; results are in the order of `tasks`. Identical files are processed once.

    Raises `StoppedError` if a stop was requested before the end, and `UserError` if a worker raised one.
    """
    first = _find_first_copies(tasks)
    wanted = [task for task in tasks if first.get(task.source.digest, task) is task]
    finished, work = _load_stored(wanted, setup)
    left = [task for task in wanted if task.source.name not in finished]
    if finished and left:
        print(f"{len(finished)} of {len(wanted)} recordings were processed in earlier runs", flush=True)
    with RecordingProgress(len(left), sum(task.estimated_seconds for task in left)) as progress:
        for task, recording in _process_tasks(left, setup, work, stop):
            finished[task.source.name] = recording
            reasons = [reason for one in clip_selection.apply_rules([recording], standard) for reason in one.reasons]
            progress.update(recording, task.estimated_seconds, reasons)
    if len(finished) < len(wanted):
        raise StoppedError(f"{len(finished)} of {len(wanted)} recordings are processed")
    prepared = []
    for task in tasks:
        if task.source.name in finished:
            prepared.append(finished[task.source.name])
        else:
            other = finished[first[task.source.digest].source.name]
            prepared.append(refuse_recording(task.source, "duplicate", f"the same bytes as {other.source.name}", other.total))
    return prepared, work


def _find_first_copies(tasks: Sequence[RecordingTask]) -> dict[str, RecordingTask]:
    """Digest → first task with that content, preferring one with a transcript."""
    firsts: dict[str, RecordingTask] = {}
    for task in tasks:
        known = firsts.get(task.source.digest)
        if not task.source.problem and (known is None or (known.transcript is None and task.transcript is not None)):
            firsts[task.source.digest] = task
    return firsts


def _load_stored(tasks: Sequence[RecordingTask], setup: WorkerSetup) -> tuple[dict[str, PreparedRecording], WorkCounts]:
    """Recordings by name that need no processing: stored results, and unusable files."""
    known: dict[str, PreparedRecording] = {}
    work = WorkCounts()
    for task in tasks:
        stages = StoredStages(setup.stages)
        with contextlib.suppress(NotStoredError), Models(None, "", setup.stages) as nothing:
            known[task.source.name] = prepare_recording(task.source, task.transcript, setup.job, stages, nothing)
            work.add(WorkCounts(reused=stages.reused))
    return known, work


def _process_tasks(
    tasks: Sequence[RecordingTask], setup: WorkerSetup, work: WorkCounts, stop: StopSignal
) -> Iterator[tuple[RecordingTask, PreparedRecording]]:
    """Yield results as they complete, the longest recordings started first; fewer if a stop is requested."""
    if not tasks:
        return
    order = sorted(tasks, key=lambda task: (-task.estimated_seconds, task.source.name))
    for index, result in distribute_items(
        order, functools.partial(_open_worker, setup), setup.workers, _estimate_worker_memory(setup), stop
    ):
        if isinstance(result, Failure):
            yield order[index], _reject_crashed(order[index], setup, result)
        else:
            recording, done = result
            work.add(done)
            yield order[index], recording


def _estimate_worker_memory(setup: WorkerSetup) -> int:
    """Memory of a local worker in bytes. Downloads the Whisper weights if needed."""
    return WORKER_BYTES + (
        LOADED * whisper_engine.fetch_weights(setup.whisper).stat().st_size if setup.whisper and not setup.workers.remote else 0
    )


@contextlib.contextmanager
def _open_worker(setup: WorkerSetup, device: str) -> Iterator[Callable[[RecordingTask], tuple[PreparedRecording, WorkCounts]]]:
    """The function that a worker applies to each recording. Models are loaded once, when a recording first needs them."""
    with use_one_thread(), Models(setup.whisper, device, setup.stages, setup.job.encoder) as models:
        yield functools.partial(_process_recording, setup, models)


def _process_recording(setup: WorkerSetup, models: Models, task: RecordingTask) -> tuple[PreparedRecording, WorkCounts]:
    stages, before = Stages(setup.stages), models.loads.copy()
    recording = prepare_recording(task.source, task.transcript, setup.job, stages, models)
    return recording, WorkCounts(stages.computed, stages.reused, models.loads - before)


def _reject_crashed(task: RecordingTask, setup: WorkerSetup, failure: Failure) -> PreparedRecording:
    """Reject a recording that crashed its worker repeatedly. Its duration may be known from a stored result."""
    speech = load_stored_speech(task.source, StoredStages(setup.stages))
    how = "twice, the second time alone" if setup.workers.remote is None else "repeatedly"
    detail = f"processing failed {how}: {failure.why}"
    return refuse_recording(task.source, "crashed", detail, speech.track.length if isinstance(speech, DetectedSpeech) else 0)
