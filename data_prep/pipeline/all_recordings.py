"""Process all recordings of a dataset (decode, detect speech, transcribe, cut): reuses stored results, distributes the rest to workers."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

from overtone.data_prep.audio.stream_reader import AudioError
from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.parallel.item_distribution import distribute_items
from overtone.data_prep.parallel.process_pool import SYSTEMATIC, Failure, StoppedError, StopSignal, generalize_failure, is_of_the_machine
from overtone.data_prep.parallel.torch_settings import use_one_thread
from overtone.data_prep.parallel.worker_options import WorkerOptions
from overtone.data_prep.pipeline import clip_selection
from overtone.data_prep.pipeline.clip_selection import SelectionCriteria
from overtone.data_prep.pipeline.one_recording import (
    begin_part,
    examine_recording,
    join_parts,
    prepare_part,
    prepare_recording,
    store_samples,
)
from overtone.data_prep.pipeline.progress import RecordingProgress
from overtone.data_prep.pipeline.recording_results import (
    DecodedPart,
    DetectedSpeech,
    DividedRecording,
    Job,
    PreparedPart,
    PreparedRecording,
    refuse_recording,
)
from overtone.data_prep.pipeline.recording_run import RecordingRun
from overtone.data_prep.pipeline.speech_detection import SAMPLES, load_stored_speech, locate_samples
from overtone.data_prep.pipeline.stage_cache import NotStoredError, Stages, StoredStages
from overtone.data_prep.pipeline.user_notices import Notice
from overtone.data_prep.pipeline.worker_activity import Activity
from overtone.data_prep.pipeline.worker_models import Models
from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.recordings.user_transcripts import UserTranscript
from overtone.data_prep.segmentation.vad import Region
from overtone.data_prep.transcription import whisper_engine
from overtone.data_prep.transcription.whisper_languages import WHISPER_OPTION
from overtone.finetune.errors import UserError, format_count
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line

BYTES_PER_SECOND = {".wav": 96_000, ".aif": 96_000, ".aiff": 96_000, ".flac": 50_000}
"""Approximate bytes per second of sound; other suffixes are compressed formats."""
COMPRESSED_BYTES_PER_SECOND = 16_000
WORKER_BYTES = 3 << 29
"""Memory of a worker without Whisper: torch, voice activity detection, working copies of an hour of audio. Samples are memory-mapped."""
CRASHED = "crashed"
"""Reason for recordings on which a model or its process failed."""
LOADED = 3
"""Memory of Whisper, and of an aligner, as a multiple of the file size: 16-bit weights are read and converted to 32 bits."""
ENCODER_BYTES = 1 << 30
"""Memory of a speaker encoder: an x-vector model of 100 million parameters in fp32, twice while it is read. The others take less."""


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
class PartTask:
    """One part of a divided recording."""

    recording: RecordingTask
    divided: DividedRecording
    number: int

    @property
    def place(self) -> Region:
        return self.divided.parts[self.number]


@dataclass(frozen=True)
class BeginTask:
    """One part of a recording that is still being decoded."""

    recording: RecordingTask
    part: DecodedPart


Task = RecordingTask | PartTask | BeginTask


@dataclass(frozen=True)
class WorkerSetup:
    """Configuration of the workers."""

    job: Job
    stages: Path
    whisper: str | None
    workers: WorkerOptions
    whisper_option: str = WHISPER_OPTION
    """The option that named the Whisper, for messages."""


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
    _remove_samples(setup, {task.source.digest for task in left})
    if finished and left:
        print_line(f"{len(finished)} of {len(wanted)} recordings were processed in earlier runs")
    with RecordingProgress(len(left), sum(task.estimated_seconds for task in left)) as progress:
        crashes = list[str]()
        of_batches = (_process_tasks(batch, setup, work, stop, progress) for batch in list_batches(left, setup))
        for done, (task, recording) in enumerate(itertools.chain.from_iterable(of_batches), start=1):
            finished[task.source.name] = recording
            crashes += [recording.detail] if recording.refused == CRASHED else []
            if len(crashes) == done == SYSTEMATIC < len(left):
                _refuse_systematic(crashes)
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


def _refuse_systematic(crashes: Sequence[str]) -> None:
    """Raises `UserError` if the first recordings of a run crashed with one error that is not the machine's."""
    if len({generalize_failure(why) for why in crashes}) == 1 and not is_of_the_machine(crashes[0]):
        raise UserError(
            f"the first {SYSTEMATIC} recordings all failed with one error ({crashes[0]}); the others were not begun. Omit or replace the "
            "model or option that it names, or report it; finished work is kept, and the same command resumes"
        )


def describe_crashes(recordings: Sequence[PreparedRecording]) -> list[Notice]:
    """Return a warning for each error by which recordings are lost."""
    groups: dict[str, list[PreparedRecording]] = defaultdict(list)
    for one in recordings:
        if one.refused == CRASHED:
            groups[generalize_failure(one.detail)].append(one)
    return [
        Notice(
            text=f"{format_count(len(group), 'recording')} lost by a crash: {group[0].detail}; run again, then omit the model that failed",
            recordings=tuple(one.source.name for one in group),
        )
        for group in groups.values()
    ]


def list_batches(tasks: Sequence[RecordingTask], setup: WorkerSetup) -> list[list[RecordingTask]]:
    """Return the tasks in batches that are processed one after the other: one for the local pool. Ray processes parts after all recordings
    of a batch (`ray_pool.run_items`), so a batch has no more long recordings than there are workers; otherwise the samples of all would be
    on the disk at once."""
    if setup.workers.remote is None:
        return [list(tasks)]
    most = max(1, setup.workers.remote.workers)
    longest_first = sorted(tasks, key=lambda task: -task.estimated_seconds)
    # A recording is divided from twice that duration on; the estimate may be half of it.
    long = sum(task.estimated_seconds > setup.job.part_seconds for task in longest_first)
    last = long - long % most
    return [*(longest_first[first : first + most] for first in range(0, last, most)), longest_first[last:]]


def _find_first_copies(tasks: Sequence[RecordingTask]) -> dict[str, RecordingTask]:
    """Return digest → first task with that content, preferring one with a transcript."""
    firsts: dict[str, RecordingTask] = {}
    for task in tasks:
        known = firsts.get(task.source.digest)
        if not task.source.problem and (known is None or (known.transcript is None and task.transcript is not None)):
            firsts[task.source.digest] = task
    return firsts


def _load_stored(tasks: Sequence[RecordingTask], setup: WorkerSetup) -> tuple[dict[str, PreparedRecording], WorkCounts]:
    """Return the recordings by name that need no processing: stored results, and unusable files."""
    known: dict[str, PreparedRecording] = {}
    work = WorkCounts()
    for task in tasks:
        stages = StoredStages(setup.stages)
        with contextlib.suppress(NotStoredError), Models(None, "", setup.stages) as nothing:
            known[task.source.name] = prepare_recording(RecordingRun(task.source, task.transcript, setup.job, stages, nothing))
            work.add(WorkCounts(reused=stages.reused))
    return known, work


def _process_tasks(
    tasks: Sequence[RecordingTask], setup: WorkerSetup, work: WorkCounts, stop: StopSignal, progress: RecordingProgress
) -> Iterator[tuple[RecordingTask, PreparedRecording]]:
    """Yield results as they complete, the longest recordings started first; fewer if a stop is requested. The parts of a long recording
    are next once they are known, so that the samples of no more recordings than workers are on the disk."""
    if not tasks:
        return
    queue: list[Task] = [*sorted(tasks, key=lambda task: (-task.estimated_seconds, task.source.name))]
    parts: dict[str, dict[int, PreparedPart | Failure]] = {}
    begun = _BegunParts(queue)

    def receive(index: int, value: Activity | DecodedPart) -> None:
        if isinstance(value, DecodedPart):
            begun.add(_get_recording(queue[index]), value)
        else:
            progress.show_activity(_get_recording(queue[index]).source.name, value)

    memory = _estimate_worker_memory(setup)
    for index, answer in distribute_items(queue, functools.partial(_open_worker, setup), setup.workers, memory, stop, receive):
        item, task = queue[index], _get_recording(queue[index])
        outcome, done = (answer, WorkCounts()) if isinstance(answer, Failure) else answer
        work.add(done)
        if isinstance(item, BeginTask):
            begun.finish(item)
            continue
        if isinstance(outcome, DividedRecording):
            begun.queue_parts([PartTask(task, outcome, number) for number in range(len(outcome.parts))])
            continue
        if isinstance(item, PartTask):
            assert isinstance(outcome, PreparedPart | Failure)
            known = parts.setdefault(task.source.name, {})
            known[item.number] = outcome
            if isinstance(outcome, PreparedPart):
                progress.update_part(task.source.name, task.estimated_seconds, item.divided, item.number, len(outcome.clips))
            if len(known) < len(item.divided.parts):
                continue
            recording = _join_parts(item, parts.pop(task.source.name), setup)
        else:
            assert isinstance(outcome, PreparedRecording | Failure)
            recording = _reject_crashed(task, setup, outcome) if isinstance(outcome, Failure) else outcome
        files.discard(locate_samples(task.source, setup.stages))
        yield task, recording


class _BegunParts:
    """The parts that are begun before their recording is decoded. Queues each part of it behind what was begun, so that no work is done
    twice; a part that could not be begun is processed from its start."""

    def __init__(self, queue: list[Task]) -> None:
        self._queue = queue
        self._running: dict[tuple[str, Region], PartTask | None] = {}
        """(recording, place) of each part that is begun → the part once it can be finished."""
        self._known: set[tuple[str, Region]] = set()

    def add(self, recording: RecordingTask, part: DecodedPart) -> None:
        """Begin a part, unless an earlier attempt to decode the recording sent it."""
        key = (recording.source.name, part.place)
        if key not in self._known:
            self._known.add(key)
            self._running[key] = None
            self._queue.append(BeginTask(recording, part))

    def finish(self, item: BeginTask) -> None:
        task = self._running.pop((item.recording.source.name, item.part.place))
        if task is not None:
            self._queue.append(task)

    def queue_parts(self, tasks: list[PartTask]) -> None:
        for task in tasks:
            key = (task.recording.source.name, task.place)
            if key in self._running:
                self._running[key] = task
            else:
                self._queue.append(task)


def _get_recording(item: Task) -> RecordingTask:
    return item if isinstance(item, RecordingTask) else item.recording


def _join_parts(last: PartTask, prepared: dict[int, PreparedPart | Failure], setup: WorkerSetup) -> PreparedRecording:
    """Return the whole recording, rejected if a part crashed: the next run transcribes only that part, and cuts all clips again."""
    found: list[PreparedPart] = []
    for number, part in sorted(prepared.items()):
        if isinstance(part, Failure):
            place = f"the part from {last.divided.parts[number].start / MASTER_RATE:.0f} s: "
            return _reject_crashed(last.recording, setup, Failure(place + part.why))
        found.append(part)
    return join_parts(last.recording.source, last.divided, found)


def _remove_samples(setup: WorkerSetup, digests: AbstractSet[str]) -> None:
    """Delete what earlier runs left of the samples of long recordings, except of those with one of `digests`."""
    folder = setup.stages / SAMPLES
    files.remove_unfinished(folder)
    for path in folder.glob("*"):
        if path.name not in digests:
            files.discard(path)


def _estimate_worker_memory(setup: WorkerSetup) -> int:
    """Return the memory of a local worker in bytes, with all models of the run. Downloads the Whisper weights if needed."""
    if setup.workers.remote:
        return WORKER_BYTES
    whisper = whisper_engine.fetch_weights(setup.whisper, setup.whisper_option).stat().st_size if setup.whisper else 0
    aligner = setup.job.aligner.weight_bytes if setup.job.aligner else 0
    return WORKER_BYTES + LOADED * (whisper + aligner) + (ENCODER_BYTES if setup.job.encoder else 0)


WorkResult = PreparedRecording | DividedRecording | PreparedPart | None


@contextlib.contextmanager
def _open_worker(setup: WorkerSetup, device: str) -> Iterator[Callable[[Task], tuple[WorkResult, WorkCounts]]]:
    """Open the models of a worker, and yield the function that it applies to each recording or part. Each model is loaded once, when an
    item first needs it."""
    job = setup.job
    with (
        use_one_thread(),
        Models(
            whisper=setup.whisper,
            device=device,
            folder=setup.stages,
            encoder=job.encoder,
            scorer=job.scorer,
            aligner=job.aligner,
            whisper_option=setup.whisper_option,
        ) as models,
    ):
        yield functools.partial(_process_item, setup, models)


def _process_item(setup: WorkerSetup, models: Models, item: Task) -> tuple[WorkResult, WorkCounts]:
    stages, before, task = Stages(setup.stages), models.loads.copy(), _get_recording(item)
    run = RecordingRun(task.source, task.transcript, setup.job, stages, models)
    if isinstance(item, PartTask):
        result: WorkResult = prepare_part(run, item.divided, item.place)
    elif isinstance(item, BeginTask):
        result = None
        begin_part(run, item.part)
    else:
        result = _start_recording(run)
    return result, WorkCounts(stages.computed, stages.reused, models.loads - before)


def _start_recording(run: RecordingRun) -> PreparedRecording | DividedRecording:
    """Finish a short recording; divide a long one, and store its samples on the disk."""
    found = examine_recording(run)
    try:
        if isinstance(found, DividedRecording):
            store_samples(run, found)
    except AudioError as error:
        return refuse_recording(run.source, error.reason, error.detail, round(error.seconds * MASTER_RATE))
    return found


def _reject_crashed(task: RecordingTask, setup: WorkerSetup, failure: Failure) -> PreparedRecording:
    """Reject a recording that crashed its worker repeatedly. Its duration may be known from a stored result."""
    speech = load_stored_speech(task.source, StoredStages(setup.stages))
    how = "twice, the second time alone" if setup.workers.remote is None else "repeatedly"
    detail = f"processing failed {how}: {failure.why}"
    return refuse_recording(task.source, CRASHED, detail, speech.track.length if isinstance(speech, DetectedSpeech) else 0)
