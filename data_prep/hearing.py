"""All recordings of a data set through their stages: what was heard before is recalled, the rest is shared out among workers."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data_prep import judge, transcribe
from data_prep.device import one_thread
from data_prep.judge import Standard
from data_prep.models import Models
from data_prep.pool import Failure, Stop
from data_prep.progress import Progress
from data_prep.recording import Job, Recording, Speech, prepare, refused, stored_speech
from data_prep.sources import Source
from data_prep.stages import Memory, NotStoredError, Stages
from data_prep.transcripts import Transcript
from data_prep.workers import Workers, share_out

BYTES_PER_SECOND = {".wav": 96_000, ".aif": 96_000, ".aiff": 96_000, ".flac": 50_000}
"""About; elsewhere a compressed format."""
COMPRESSED_BYTES_PER_SECOND = 16_000
WORKER_BYTES = 3 << 29
"""Memory of a worker without Whisper: torch, the detector, and working copies of an hour of sound. Sound itself is mapped from the disk."""
LOADED = 3
"""Memory that Whisper takes, in sizes of its file: 16-bit weights are read, and held in 32 bits."""


class StoppedError(Exception):
    """A person asked to stop, and not all was heard."""


@dataclass(frozen=True)
class Task:
    """One recording to hear, and its transcript if it has one."""

    source: Source
    transcript: Transcript | None

    @property
    def about_seconds(self) -> float:
        """From the size of the file: to begin with the longest, and to say how much is left."""
        size = self.source.path.stat().st_size if self.source.path.is_file() else 0
        return size / BYTES_PER_SECOND.get(self.source.path.suffix.lower(), COMPRESSED_BYTES_PER_SECOND)


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know."""

    job: Job
    stages: Path
    whisper: str | None
    workers: Workers


@dataclass
class Work:
    """Counts of one run, for run.json."""

    computed: Counter[str] = field(default_factory=Counter)
    reused: Counter[str] = field(default_factory=Counter)
    model_loads: Counter[str] = field(default_factory=Counter)

    def add(self, other: Work) -> None:
        self.computed += other.computed
        self.reused += other.reused
        self.model_loads += other.model_loads


def hear_all(tasks: Sequence[Task], setup: Setup, standard: Standard, stop: Stop) -> tuple[list[Recording], Work]:
    """All of them, in the order of `tasks`. A file that is there twice is heard once.

    Raises `StoppedError` if `stop` was asked for before the end, and `UserError` if a worker did.
    """
    first = _firsts(tasks)
    wanted = [task for task in tasks if first.get(task.source.digest, task) is task]
    heard, work = _recall(wanted, setup)
    left = [task for task in wanted if task.source.name not in heard]
    if heard and left:
        print(f"{len(heard)} of {len(wanted)} recordings are known from before", flush=True)
    with Progress(len(left), sum(task.about_seconds for task in left)) as progress:
        for task, recording in _hear(left, setup, work, stop):
            heard[task.source.name] = recording
            reasons = [reason for one in judge.by_rules([recording], standard) for reason in one.reasons]
            progress.see(recording, task.about_seconds, reasons)
    if len(heard) < len(wanted):
        raise StoppedError(f"{len(heard)} of {len(wanted)} recordings are heard")
    return [heard.get(task.source.name) or _double(task, heard[first[task.source.digest].source.name]) for task in tasks], work


def _firsts(tasks: Sequence[Task]) -> dict[str, Task]:
    """Of each file's content the first, by name, that says what is said in it."""
    firsts: dict[str, Task] = {}
    for task in tasks:
        known = firsts.get(task.source.digest)
        if not task.source.problem and (known is None or (known.transcript is None and task.transcript is not None)):
            firsts[task.source.digest] = task
    return firsts


def _double(task: Task, other: Recording) -> Recording:
    return refused(task.source, "duplicate", f"the same bytes as {other.source.name}", other.total)


def _recall(tasks: Sequence[Task], setup: Setup) -> tuple[dict[str, Recording], Work]:
    """By name of the source: what needs no hearing, because it was done before or cannot be done."""
    known: dict[str, Recording] = {}
    work = Work()
    for task in tasks:
        stages = Memory(setup.stages)
        with contextlib.suppress(NotStoredError), Models(None, "", setup.stages) as nothing:
            known[task.source.name] = prepare(task.source, task.transcript, setup.job, stages, nothing)
            work.add(Work(reused=stages.reused))
    return known, work


def _hear(tasks: Sequence[Task], setup: Setup, work: Work, stop: Stop) -> Iterator[tuple[Task, Recording]]:
    """Each as it comes, the longest begun first; fewer if `stop` was asked for."""
    if not tasks:
        return
    order = sorted(tasks, key=lambda task: (-task.about_seconds, task.source.name))
    for index, result in share_out(order, functools.partial(_hearer, setup), setup.workers, _memory(setup), stop):
        if isinstance(result, Failure):
            yield order[index], _lost(order[index], setup, result)
        else:
            recording, done = result
            work.add(done)
            yield order[index], recording


def _memory(setup: Setup) -> int:
    """Bytes of a worker of this machine. Whisper's weights are here afterwards."""
    return WORKER_BYTES + (LOADED * transcribe.fetch(setup.whisper).stat().st_size if setup.whisper and not setup.workers.remote else 0)


@contextlib.contextmanager
def _hearer(setup: Setup, device: str) -> Iterator[Callable[[Task], tuple[Recording, Work]]]:
    """What a worker does with a recording. Its models are loaded once, with the first recording that needs them."""
    with one_thread(), Models(setup.whisper, device, setup.stages, setup.job.encoder) as models:
        yield functools.partial(_hear_one, setup, models)


def _hear_one(setup: Setup, models: Models, task: Task) -> tuple[Recording, Work]:
    stages, before = Stages(setup.stages), models.loads.copy()
    recording = prepare(task.source, task.transcript, setup.job, stages, models)
    return recording, Work(stages.computed, stages.reused, models.loads - before)


def _lost(task: Task, setup: Setup, failure: Failure) -> Recording:
    """A recording that ended its worker twice. How long it is may be known from before."""
    speech = stored_speech(task.source, Memory(setup.stages))
    how = "twice, the second time alone" if setup.workers.remote is None else "again and again"
    detail = f"hearing it failed {how}: {failure.why}"
    return refused(task.source, "crashed", detail, speech.track.length if isinstance(speech, Speech) else 0)
