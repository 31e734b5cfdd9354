"""Progress display of transcription: hours done, real-time factor, time left, and the most frequent rejection reasons so far.

A terminal shows one line that is updated in place; any other output gets one line per recording, per part of a long recording, and every
ten seconds while a step on a long recording takes longer.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.pipeline.recording_results import DividedRecording, PreparedRecording
from overtone.data_prep.pipeline.worker_activity import Activity, format_time
from overtone.finetune.errors import format_count
from overtone.finetune.storage.text_lines import split_lines
from overtone.finetune.terminal import make_safe, print_line

ACTIVITY_SECONDS = 1.0
"""Time from the start of a step, or from the last line, until a line shows the progress of the step."""
ACTIVITY_EVERY_SECONDS = 10.0
REASONS = 4
"""Rejection reasons shown; more do not fit on a line."""


class RecordingProgress:
    """Owns the progress bar. Use it as a context manager, and call `update` for each finished recording."""

    def __init__(self, recordings: int, estimated_seconds: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._console = Console(highlight=False, markup=False, soft_wrap=True)
        columns = (
            SpinnerColumn(),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._bar = Bar(*columns, console=self._console, disable=not self._console.is_terminal)
        self._line = self._bar.add_task("", total=recordings)
        self._count, self._done, self._pace = recordings, 0, Pace()
        self._estimated, self._estimated_done, self._seconds_done = estimated_seconds, 0.0, 0.0
        self._reasons: Counter[str] = Counter()
        self._parts_done: defaultdict[str, float] = defaultdict(float)
        self._steps: dict[tuple[str, str], float] = {}
        self._next_line: dict[tuple[str, str], float] = {}

    def update(self, recording: PreparedRecording, estimated_seconds: float, reasons: Iterable[str]) -> None:
        """Count a finished recording. `estimated_seconds`: its estimated duration; `reasons`: why its clips were rejected."""
        self._done += 1
        of_parts = self._parts_done.pop(recording.source.name, 0.0)
        total = recording.total / MASTER_RATE
        self._estimated_done += estimated_seconds * (1 - of_parts / total if of_parts else 1.0)
        self._seconds_done += total - of_parts
        self._reasons.update(reasons)
        what = " ".join(split_lines(f"{recording.source.name}: {describe_result(recording)}"))  # a file name may contain a line break
        now = self._format_now()
        if self._console.is_terminal:
            self._bar.update(self._line, completed=self._done, description=now)
            if recording.refused:
                self._console.print(make_safe(what))
        else:
            print_line(f"[{self._done}/{self._count}] {what} · {now}")

    def update_part(self, name: str, estimated_seconds: float, divided: DividedRecording, number: int, clips: int) -> None:
        """Count finished part `number` of the long recording `name`, which has `clips`; `estimated_seconds`: of the whole recording."""
        seconds, total = divided.parts[number].seconds, divided.speech.track.length / MASTER_RATE
        self._parts_done[name] += seconds
        self._seconds_done += seconds
        self._estimated_done += estimated_seconds * seconds / total
        now = self._format_now()
        if self._console.is_terminal:
            self._bar.update(self._line, description=now)
        else:
            name = " ".join(split_lines(name))
            what = f"{name}: part {number + 1} of {len(divided.parts)}, {format_count(clips, 'clip')}"
            print_line(f"[{self._done}/{self._count}] {what} · {now}")

    def show_activity(self, name: str, activity: Activity) -> None:
        """Show how far a worker is with a step on recording `name`, if the step takes seconds."""
        now, key = time.monotonic(), (name, activity.step)
        began = self._steps.setdefault(key, now)
        if now < self._next_line.setdefault(key, began + ACTIVITY_SECONDS):
            return
        speed = activity.seconds / max(now - began, 0.001)
        what = f"{' '.join(split_lines(name))}: {activity.step}, {format_time(activity.seconds)}, {speed:.0f}× real time"
        if self._console.is_terminal:
            self._bar.update(self._line, description=make_safe(what))
        else:
            self._next_line[key] = now + ACTIVITY_EVERY_SECONDS
            print_line(f"[{self._done}/{self._count}] {what}")

    def _format_now(self) -> str:
        speed = self._pace.compute_speed(self._seconds_done)
        # Estimates are from file sizes; those of the rest are scaled by the error of those of finished recordings.
        scale = self._seconds_done / self._estimated_done if self._estimated_done else 1.0
        total = self._seconds_done + scale * (self._estimated - self._estimated_done)
        return format_progress(self._seconds_done, total, speed, self._reasons)

    def __enter__(self) -> RecordingProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def describe_result(recording: PreparedRecording) -> str:
    """Return the outcome of a recording, for the progress line."""
    return f"rejected, {recording.refused}: {recording.detail}" if recording.refused else format_count(len(recording.clips), "clip")


class Pace:
    """Speed of work since its first part was done: before that, models are loaded and workers start, which does not predict the rest."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began, self._warm = clock, 0.0, 0.0

    def compute_speed(self, done: float) -> float | None:
        """Return the units of `done` per second; None for the first part, and while the next is not done."""
        if not self._began and done:
            self._began, self._warm = self._clock(), done
        elapsed, later = self._clock() - self._began, done - self._warm
        return later / max(elapsed, 0.001) if later > 0 else None


def format_progress(done: float, total: float, speed: float | None, reasons: Counter[str]) -> str:
    """Return the progress text: time done and in total, real-time factor, time left, rejection counts. `done`, `total`: seconds. `speed`:
    seconds of sound per second; None: unknown yet."""
    rate = "" if speed is None else f", {speed:.1f}× real time, {format_time((total - done) / speed)} left"
    counts = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common(REASONS))
    return f"{format_time(done)} of about {format_time(total)}{rate}" + f" · rejected for: {counts}" * bool(counts)
