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

from pydantic import BaseModel, ConfigDict

from data_prep.audio import MASTER_RATE, Audio
from data_prep.vad import Region, gaps, quietest

CUT_GAP_SECONDS = 0.09
"""A shorter pause may be the closure of a plosive."""
LEAD_SECONDS, TAIL_SECONDS = 0.10, 0.20
"""Real sound kept before and after the speech: less teaches a model to clip word ends."""
LONG_PAUSE_SECONDS = 1.5
OUTSIDE_PENALTY = 50.0  # a duration that the filters will reject: only if there is no other way
PAUSE_PENALTY = 5.0
UNTOLD_PENALTY = 2.0  # speech inside a clip for which there is no text
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
    claims: dict[int, list[Region]] = {}
    for pause in [first, *pauses, last]:
        nearest = min(range(len(boundaries)), key=lambda index: (_distance(pause, boundaries[index]), -index))
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
    best: list[tuple[float, int]] = [(0.0, 0)]
    for right in range(1, len(cuts)):
        costs = []
        for left in range(right - 1, -1, -1):
            seconds = _speech_span(cuts[left], cuts[right]).seconds
            if seconds > 2 * lengths.longest and left < right - 1:
                break  # only worse from here on
            costs.append((best[left][0] + _cost(cuts[left : right + 1], units, lengths, bonus), left))
        best.append(min(costs))
    return [_piece(cuts[left], cuts[right], units, audio) for left, right in _path(best)]


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


def _speech_span(left: Cut, right: Cut) -> Region:
    return Region(left.gap.stop, right.gap.start)


def _cost(cuts: list[Cut], units: list[Unit], lengths: Lengths, bonus: Callable[[Unit], float]) -> float:
    """Of one clip from the first of `cuts` to the last; those between are pauses inside it."""
    left, right, inner = cuts[0], cuts[-1], cuts[1:-1]
    if left.unit == right.unit:  # nobody said what this is: it stands alone and is reported
        return 0.0 if not inner else OUTSIDE_PENALTY * len(cuts)
    seconds = _speech_span(left, right).seconds + LEAD_SECONDS + TAIL_SECONDS
    excess = max(0.0, seconds - lengths.longest, lengths.shortest - seconds)
    untold = sum(one.unit == other.unit for one, other in itertools.pairwise(cuts))
    return (
        ((seconds - lengths.target) / lengths.target) ** 2
        + (OUTSIDE_PENALTY + excess if excess else 0.0)
        + PAUSE_PENALTY * sum(cut.gap.seconds > LONG_PAUSE_SECONDS for cut in inner)
        + UNTOLD_PENALTY * untold
        - bonus(units[right.unit - 1])
    )


def _path(best: list[tuple[float, int]]) -> list[tuple[int, int]]:
    right = len(best) - 1
    steps = []
    while right > 0:
        steps.append((best[right][1], right))
        right = best[right][1]
    return steps[::-1]


def _piece(left: Cut, right: Cut, units: list[Unit], audio: Audio) -> Piece:
    """Edges at the quietest 10 ms of the second half of the lead and of the tail, never past the middle of a pause."""
    lead, tail = int(LEAD_SECONDS * MASTER_RATE), int(TAIL_SECONDS * MASTER_RATE)
    speech = _speech_span(left, right)
    earliest = left.gap.middle if left.gap.start else left.gap.start
    latest = right.gap.middle if right.gap.stop < len(audio.samples) else right.gap.stop
    start = quietest(audio, max(earliest, speech.start - lead), max(earliest, speech.start - lead // 2))
    stop = quietest(audio, min(latest, speech.stop + tail // 2), min(latest, speech.stop + tail))
    return Piece(start, stop, tuple(units[left.unit : right.unit]))
