"""Places the packets of a container in time, so that a decoded recording equals what a player plays.

Positions are counted in samples, so decoded packets follow each other without a seam. The packets' times only decide where sound is absent:
a recorder that pauses, a stream that starts after the picture, packets that were lost. Times are not exact:

- Matroska, FLV and ASF round them to milliseconds, so that two of them differ by up to one unit from the number of samples between them;
- a live recorder takes times from the clock of the machine, some milliseconds early or late.

A lost packet leaves a gap of its whole duration, so the limit is half a packet, at most `MOST` (the speech detector steps by 32 ms) and at
least two units of the container's times. Deviations add up: none is larger than `DRIFT` afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from overtone.data_prep.audio.decoded_stream import AudioError

MOST = Fraction(20, 1000)
"""Largest deviation, in seconds, that counts as inexact and not as a pause."""
DRIFT = Fraction(1, 10)
"""Seconds by which the times may run ahead of the samples in small steps, before silence is added."""
LATE_START = Fraction(1, 20)
"""Delay in seconds below which a stream counts as starting with the picture: encoders put up to 48 ms (AAC) before the first sound."""
DISCONTINUITY = 10
"""Seconds. A larger step of a broadcast's clock counts as a new clock, as in players, and not as a pause."""
OVERLAP = Fraction(1, 2)
"""Seconds. A larger step back is a new clock in every container."""
LONGEST_PAUSE = 24 * 3600
"""Seconds. A larger step is an error of the file."""


@dataclass
class PacketClock:
    """Finds pauses in the times of consecutive packets."""

    rate: int
    """Hz, of the samples that are counted."""
    unit: Fraction
    """Seconds of one unit of the container's times."""
    picture: Fraction | None = None
    """Time at which the other streams of the container start, in seconds; None: there are none."""
    is_broadcast: bool = False
    """True if the container allows its clock to be set anew."""
    late_start: Fraction | None = None
    """Time, in seconds, at which a step does not count as a pause: the packets before were counted from 0, and the stream begins later."""
    written: int = 0
    """Samples written so far, silence included."""
    lead: int = 0
    """Samples of silence before the first packet."""
    _origin: Fraction | None = None
    _before: Fraction = Fraction(0)
    """Deviation of the previous packet, in seconds."""
    _pauses: list[tuple[int, int]] = field(default_factory=list)
    """Position and length of the silence, in samples."""
    _overlaps: list[int] = field(default_factory=list)
    _longest_overlap: Fraction = Fraction(0)
    """Longest overlap so far, in seconds."""
    _jumps: list[int] = field(default_factory=list)

    def place(self, time: Fraction | None, samples: int) -> int:
        """Return the number of samples of silence before a packet of `samples` that belongs at `time` (seconds; None: unknown).

        Raises `AudioError` (`unreadable`) for a pause of more than a day.
        """
        silence = self._find_silence(time, samples)
        if silence > LONGEST_PAUSE * self.rate:
            at = self.written / self.rate
            detail = f"the times of its packets jump by {silence / self.rate / 3600:,.0f} hours at {at:.2f} s; write the file again"
            raise AudioError("unreadable", detail, at)
        self.written += silence + samples
        return silence

    def _find_silence(self, time: Fraction | None, samples: int) -> int:
        if time is None:
            return 0
        if self._origin is None:
            return self._start(time)
        if time == self.late_start:
            self._origin, self._before = time - Fraction(self.written, self.rate), Fraction(0)
            return 0
        limit = max(min(Fraction(samples, 2 * self.rate), MOST), 2 * self.unit)
        late = time - self._origin - Fraction(self.written, self.rate)
        step, self._before = late - self._before, late
        if step < -OVERLAP or (step > DISCONTINUITY and self.is_broadcast):
            self._jumps.append(self.written)
        elif late > limit and (step > limit or late > DRIFT):
            silence = round(late * self.rate)
            self._pauses.append((self.written, silence))
            self._before = Fraction(0)
            return silence
        else:
            if (late < -limit and step < -limit) or (late < -DRIFT and not self._overlaps):
                self._overlaps.append(self.written)
            self._longest_overlap = max(self._longest_overlap, -late)
            return 0
        self._origin, self._before = time - Fraction(self.written, self.rate), Fraction(0)
        return 0

    def _start(self, time: Fraction) -> int:
        start = time if self.picture is None else min(time, self.picture)
        late = time - start
        if late > DISCONTINUITY and self.is_broadcast:
            self._jumps.append(0)
            late = Fraction(0)
        self.lead = round(late * self.rate) if late > LATE_START else 0
        self._origin = time - Fraction(self.written + self.lead, self.rate)
        return self.lead

    def describe(self) -> list[str]:
        """Return notes for the user on what was found."""
        found = []
        if self.lead:
            found.append(f"its sound starts {self.lead / self.rate:.2f} s after the other streams of the file: as much silence comes first")
        if self._pauses:
            total = sum(length for _, length in self._pauses) / self.rate
            found.append(
                f"{total:.2f} s of silence where its packets pause or are lost ({_list_places([at for at, _ in self._pauses], self.rate)})"
            )
        if self._overlaps:
            longest = float(self._longest_overlap)
            found.append(f"packets whose times overlap by up to {longest:.2f} s, all played ({_list_places(self._overlaps, self.rate)})")
        if self._jumps:
            found.append(f"the clock of its packets is set anew, taken for no pause ({_list_places(self._jumps, self.rate)})")
        return found


def _list_places(places: list[int], rate: int) -> str:
    first = ", ".join(f"{position / rate:.2f} s" for position in places[:3])
    return f"at {first}" + (f" and {len(places) - 3} more" if len(places) > 3 else "")
