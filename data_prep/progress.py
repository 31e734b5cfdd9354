"""What a person sees while recordings are heard: how much is done, how fast, how long it will take, and what speaks against the clips.

On a terminal one line that stays; elsewhere one line for each recording, for logs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta

from data_prep.audio import MASTER_RATE
from data_prep.recording import Recording

REASONS = 4
"""As many as fit on a line."""


class Progress:
    """Owns the line on the terminal. A context manager; `see` each recording as it comes."""

    def __init__(self, recordings: int, about_seconds: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._console = Console(highlight=False, markup=False, soft_wrap=True)
        columns = (SpinnerColumn(), MofNCompleteColumn(), BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._bar = Bar(*columns, console=self._console, disable=not self._console.is_terminal)
        self._line = self._bar.add_task("", total=recordings)
        self._count, self._done, self._started = recordings, 0, time.monotonic()
        self._about, self._about_done, self._heard = about_seconds, 0.0, 0.0
        self._reasons: Counter[str] = Counter()

    def see(self, recording: Recording, about_seconds: float, reasons: Iterable[str]) -> None:
        """One more recording; `about_seconds` is what its length was taken for, `reasons` those against its clips."""
        self._done += 1
        self._about_done += about_seconds
        self._heard += recording.total / MASTER_RATE
        self._reasons.update(reasons)
        what = " ".join(f"{recording.source.name}: {told(recording)}".splitlines())  # a name may hold a new line
        now = figures(self._heard, self._total(), time.monotonic() - self._started, self._reasons)
        if self._console.is_terminal:
            self._bar.update(self._line, completed=self._done, description=now)
            if recording.refused:
                self._console.print(what)
        else:
            print(f"[{self._done}/{self._count}] {what} · {now}", flush=True)

    def _total(self) -> float:
        """Seconds: guesses from sizes of files, corrected by how well those of the finished ones were guessed."""
        return self._heard + (self._about - self._about_done) * (self._heard / self._about_done if self._about_done else 1.0)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def told(recording: Recording) -> str:
    """What became of a recording."""
    return f"rejected, {recording.refused}: {recording.detail}" if recording.refused else f"{len(recording.clips)} clips"


def figures(heard: float, total: float, elapsed: float, reasons: Counter[str]) -> str:
    """Time heard and in all, the real-time factor, time left, and what is against clips so far. `heard`, `total`, `elapsed`: seconds."""
    speed = heard / max(elapsed, 0.001)
    left = _clock((total - heard) / speed) if heard else "?"
    against = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common(REASONS))
    return f"{_clock(heard)} of about {_clock(total)}, {speed:.1f}× real time, {left} left" + (
        f" · against clips: {against}" * bool(against)
    )


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
