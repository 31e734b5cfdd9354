"""Where a recording is cut into clips: in pauses only, and which pauses is a small optimisation.

A unit is a piece of text with rough times: a word that Whisper heard, or an utterance of a transcript. Its times only choose *which* pause
of the voice activity detection separates it from its neighbour; *where* inside the pause the clip ends is decided by the sound.
All positions are samples at `MASTER_RATE`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from data_prep.audio import MASTER_RATE, Audio
from data_prep.vad import Region, gaps, quietest

CUT_GAP_SECONDS = 0.09
"""A shorter pause may be the closure of a plosive."""
LEAD_SECONDS, TAIL_SECONDS = 0.10, 0.20
"""Real sound kept before and after the speech: less teaches a model to clip word ends."""
LONG_PAUSE_SECONDS = 1.5
REJECTED_PENALTY = 50.0  # a clip that the rules will reject, for its length or for a pause inside: only if there is no other way
UNTOLD_PENALTY = 150.0  # speech inside a clip for which there is no text: rather reject both its neighbours than teach that
SENTENCE_BONUS, CLAUSE_BONUS, UTTERANCE_BONUS = 0.5, 0.2, 10.0
SENTENCE_ENDS, CLAUSE_ENDS = tuple(".?!。？！…"), tuple(",;:，；：、")


class Heard(BaseModel):
    """How sure Whisper was of one window."""

    model_config = ConfigDict(frozen=True)

    language: str
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    temperature: float
    complete: bool
    """False if the token limit ended the text."""
    language_prob: float | None = None
    """Of `language`; None for weights that know only one."""


class Unit(BaseModel):
    """A word or an utterance. `text` carries its own leading space where the language has one."""

    model_config = ConfigDict(frozen=True)

    text: str
    start: int
    stop: int
    heard: Heard | None = None
    error: str | None = None
    """Why Whisper could not hear this stretch; its `text` is empty then."""


class Piece(NamedTuple):
    """A clip to be: samples `start:stop` and what is said in them."""

    start: int
    stop: int
    units: tuple[Unit, ...]

    @property
    def text(self) -> str:
        return "".join(unit.text for unit in self.units).strip()


@dataclass(frozen=True)
class Lengths:
    """Seconds that a clip should, and may, last."""

    target: float = 6.0
    shortest: float = 1.0
    longest: float = 20.0


class Cut(NamedTuple):
    """A pause in which the recording may be cut; the units before index `unit` are said before it."""

    gap: Region
    unit: int


def align(units: list[Unit], regions: list[Region], length: int, tolerance: float) -> list[Cut]:
    """The pauses that lie between units, in order, the two ends of the recording included.

    Each pause is given to the unit boundary nearest to it, and each boundary keeps the pause that fits it best, or, where the text itself
    leaves a stretch of speech out, the pauses around that stretch. `tolerance`: seconds that a time of the text may be wrong.
    """
    pauses = [gap for gap in gaps(regions, length)[1:-1] if gap.seconds >= CUT_GAP_SECONDS]
    first, last = gaps(regions, length)[0], gaps(regions, length)[-1]
    boundaries = _boundaries(units, length)
    lows, highs = np.asarray(boundaries).T
    claims: dict[int, list[Region]] = {}
    for pause in [first, *pauses, last]:
        distances = np.maximum(0, np.maximum(pause.start - highs, lows - pause.stop))
        nearest = len(boundaries) - 1 - int(distances[::-1].argmin())  # the last of equals
        if _distance(pause, boundaries[nearest]) <= tolerance * MASTER_RATE:
            claims.setdefault(nearest, []).append(pause)
    chosen = [Cut(pause, index) for index in sorted(claims) for pause in _best(claims[index], boundaries[index])]
    inner = [cut for cut in chosen if cut.gap not in (first, last)]
    return [Cut(first, 0), *_in_order(inner), Cut(last, len(units))]


def whole(units: list[Unit], regions: list[Region], length: int) -> list[Cut]:
    """Cuts for a recording that is one clip: its two ends."""
    between = gaps(regions, length)
    return [Cut(between[0], 0), Cut(between[-1], len(units))]


def divide(cuts: list[Cut], units: list[Unit], audio: Audio, lengths: Lengths, bonus: Callable[[Unit], float]) -> list[Piece]:
    """The cheapest way through the cuts (dynamic programming). The pieces cover all speech, do not overlap, and are in order."""
    edges = [_edge(cut, audio) for cut in cuts]
    best: list[tuple[float, int]] = [(0.0, 0)]
    for right in range(1, len(cuts)):
        costs = []
        for left in range(right - 1, -1, -1):
            seconds = Region(edges[left].start, edges[right].stop).seconds
            if seconds > 2 * lengths.longest and left < right - 1:
                break  # it would be rejected whole, and so would be all that are longer
            costs.append((best[left][0] + _cost(cuts[left : right + 1], seconds, units, lengths, bonus), left))
        best.append(min(costs))
    return [Piece(edges[left].start, edges[right].stop, tuple(units[cuts[left].unit : cuts[right].unit])) for left, right in _path(best)]


def sentence_bonus(unit: Unit) -> float:
    """How welcome a cut after this word is."""
    text = unit.text.rstrip("\"'”’»)] ")
    return SENTENCE_BONUS if text.endswith(SENTENCE_ENDS) else CLAUSE_BONUS if text.endswith(CLAUSE_ENDS) else 0.0


def utterance_bonus(_unit: Unit) -> float:
    """The author of a transcript divided the text; only what is too short alone is put together."""
    return UTTERANCE_BONUS


def _boundaries(units: list[Unit], length: int) -> list[tuple[int, int]]:
    """Between which samples each boundary lies by the text's own times, the one before the first unit and after the last included."""
    stops = [0, *(unit.stop for unit in units)]
    starts = [*(unit.start for unit in units), length]
    return [(min(pair), max(pair)) for pair in zip(stops, starts, strict=True)]


def _distance(gap: Region, boundary: tuple[int, int]) -> int:
    return max(0, gap.start - boundary[1], boundary[0] - gap.stop)


def _best(pauses: list[Region], boundary: tuple[int, int]) -> list[Region]:
    """One pause, near and long; or both ends and all between, if the text places nothing where they enclose speech."""
    low, high = boundary
    slack = MASTER_RATE // 10
    touching = [pause for pause in pauses if _distance(pause, boundary) == 0]
    if len(touching) > 1 and touching[0].stop >= low - slack and touching[-1].start <= high + slack:
        return touching
    return [min(touching or pauses, key=lambda pause: _distance(pause, boundary) - min(pause.stop - pause.start, MASTER_RATE) / 2)]


def _in_order(cuts: list[Cut]) -> list[Cut]:
    """Drop what would make the text run backwards: times of the text that contradict the order of the pauses."""
    kept: list[Cut] = []
    for cut in sorted(cuts, key=lambda cut: cut.gap.start):
        if not kept or cut.unit >= kept[-1].unit:
            kept.append(cut)
    return kept


def _cost(cuts: list[Cut], seconds: float, units: list[Unit], lengths: Lengths, bonus: Callable[[Unit], float]) -> float:
    """Of one clip from the first of `cuts` to the last; those between are pauses inside it."""
    said, inner = units[cuts[0].unit : cuts[-1].unit], cuts[1:-1]
    if not said:  # nobody said what this is: it stands alone and is reported
        return UNTOLD_PENALTY * len(inner)
    untold = sum(one.unit == other.unit for one, other in itertools.pairwise(cuts))
    failed = sum(unit.error is not None for unit in said)
    torn = any(cut.gap.seconds > LONG_PAUSE_SECONDS for cut in inner)
    if torn or 0 < failed < len(said) or not lengths.shortest <= seconds <= lengths.longest:
        return REJECTED_PENALTY + seconds + UNTOLD_PENALTY * untold
    return ((seconds - lengths.target) / lengths.target) ** 2 + UNTOLD_PENALTY * untold - bonus(said[-1])


def _path(best: list[tuple[float, int]]) -> list[tuple[int, int]]:
    right = len(best) - 1
    steps = []
    while right > 0:
        steps.append((best[right][1], right))
        right = best[right][1]
    return steps[::-1]


class _Edge(NamedTuple):
    """Where the clip before a cut ends, and where the one after it starts."""

    stop: int
    start: int


def _edge(cut: Cut, audio: Audio) -> _Edge:
    """At the quietest 10 ms of the second half of the tail and of the lead, never past the middle of the pause."""
    gap, lead, tail = cut.gap, int(LEAD_SECONDS * MASTER_RATE), int(TAIL_SECONDS * MASTER_RATE)
    earliest = gap.middle if gap.start else gap.start
    latest = gap.middle if gap.stop < len(audio.samples) else gap.stop
    return _Edge(
        stop=quietest(audio, min(latest, gap.start + tail // 2), min(latest, gap.start + tail)),
        start=quietest(audio, max(earliest, gap.stop - lead), max(earliest, gap.stop - lead // 2)),
    )
