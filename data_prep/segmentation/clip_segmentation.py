"""Segmentation of a recording into clips: cuts only in pauses, chosen by dynamic programming.

A unit is text with approximate times: a Whisper word, or an utterance of a transcript. Its times only select *which* pause found by voice
activity detection separates it from its neighbour; *where* inside the pause the clip ends depends on the audio.
All positions are samples at `MASTER_RATE`.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from overtone.data_prep.audio.waveform import MASTER_RATE, Audio
from overtone.data_prep.segmentation.vad import Region, find_faded, find_quietest, list_gaps

CUT_GAP_SECONDS = 0.09
"""Minimum pause to cut at; a shorter one may be the closure of a plosive."""
LEAD_SECONDS, TAIL_SECONDS = 0.10, 0.20
"""Maximum audio kept before and after the speech; with less, a model learns to clip word ends."""
SHORTEST_TAIL_SECONDS = 0.05
"""Audio kept after the speech although it is as quiet as the pause: the closure of a final plosive may be."""
LONG_PAUSE_SECONDS = 1.5
LEAST_SPEECH_SHARE = 0.5
"""Speech in a clip, as a share of its duration; the rules reject a clip with less."""
REJECTED_SECOND_PENALTY = 50.0
"""Penalty for each second of speech in a clip that the rules will reject. A constant for each clip would give up a good sentence for two
words beside it that are too short."""
WRONG_CLIP_PENALTY = 1e5
"""Penalty for a clip with speech without text, or with two voices: nothing may be trained on it, so rejecting its neighbours is always
better."""
SENTENCE_BONUS, CLAUSE_BONUS, UTTERANCE_BONUS = 0.5, 0.2, 10.0
SENTENCE_ENDS, CLAUSE_ENDS = tuple(".?!。？！…؟۔।॥።։"), tuple(",;:，；：、،؛")
CLOSING_MARKS = "\"'”’»)]」』）】 "
"""Characters that may follow the mark at the end of a sentence."""


class WhisperScores(BaseModel):
    """Language, confidence and decoding scores of Whisper for one window."""

    model_config = ConfigDict(frozen=True)

    language: str
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    temperature: float
    complete: bool
    """False if the token limit ended the text."""
    language_prob: float | None = None
    """Probability of `language`; None for English-only weights, and where it was not computed."""


class TextUnit(BaseModel):
    """A word or an utterance; positions in samples. `text` includes a leading space in languages that use spaces."""

    model_config = ConfigDict(frozen=True)

    text: str
    start: int
    stop: int
    heard: WhisperScores | None = None
    """Scores of the Whisper output that contains it; None: from a transcript. The name is a key of stored results."""
    error: str | None = None
    """Error of Whisper on this region; `text` is then empty."""


class Piece(NamedTuple):
    """A future clip: samples `start:stop` and their text units."""

    start: int
    stop: int
    units: tuple[TextUnit, ...]

    @property
    def text(self) -> str:
        return "".join(unit.text for unit in self.units).strip()


@dataclass(frozen=True)
class Lengths:
    """Target, minimum and maximum clip duration in seconds."""

    target: float = 6.0
    shortest: float = 1.0
    longest: float = 20.0


class CutPoint(NamedTuple):
    """A pause where the recording may be cut; the units before index `unit` are spoken before it."""

    gap: Region
    unit: int


def find_cuts(units: list[TextUnit], regions: list[Region], length: int, tolerance: float) -> list[CutPoint]:
    """Return the pauses between units, in order, including the two ends of the recording.

    Each pause is assigned to the nearest unit boundary; each boundary keeps its best pause, or, where the text omits a stretch of speech,
    the pauses around that stretch. `tolerance`: maximum error of the text's times in seconds.
    """
    pauses = [gap for gap in list_gaps(regions, length)[1:-1] if gap.seconds >= CUT_GAP_SECONDS]
    first, last = list_gaps(regions, length)[0], list_gaps(regions, length)[-1]
    # The sample range (low, high) of each boundary by the text's times, including those before the first and after the last unit.
    stops, starts = [0, *(unit.stop for unit in units)], [*(unit.start for unit in units), length]
    boundaries = [(min(pair), max(pair)) for pair in zip(stops, starts, strict=True)]
    lows, highs = np.asarray(boundaries).T
    claims: dict[int, list[Region]] = {}
    for pause in [first, *pauses, last]:
        distances = np.maximum(0, np.maximum(pause.start - highs, lows - pause.stop))
        nearest = len(boundaries) - 1 - int(distances[::-1].argmin())  # the last one if several are equally near
        if _measure_distance(pause, boundaries[nearest]) <= tolerance * MASTER_RATE:
            claims.setdefault(nearest, []).append(pause)
    chosen = [CutPoint(pause, index) for index in sorted(claims) for pause in _choose_pauses(claims[index], boundaries[index])]
    inner = [cut for cut in chosen if cut.gap not in (first, last)]
    return [CutPoint(first, 0), *_drop_out_of_order(inner), CutPoint(last, len(units))]


def make_outer_cuts(units: list[TextUnit], regions: list[Region], length: int) -> list[CutPoint]:
    """Return the cuts that make the whole recording one clip: its two ends."""
    between = list_gaps(regions, length)
    return [CutPoint(between[0], 0), CutPoint(between[-1], len(units))]


def choose_pieces(
    cuts: list[CutPoint],
    units: list[TextUnit],
    audio: Audio,
    lengths: Lengths,
    bonus: Callable[[TextUnit], float],
    voice_changes: Sequence[int] = (),
) -> list[Piece]:
    """Return the cheapest path through the cuts (dynamic programming). The pieces cover all speech, do not overlap, and are in order.

    `voice_changes`: samples, ascending, over which no piece should reach.
    """
    edges = [_choose_edge(cut, audio) for cut in cuts]
    broken = _find_broken_sentences(cuts, units, lengths, bonus)
    penalty = _rate_duration(lengths.longest, lengths)  # so a sentence of the maximum clip length is better whole
    best: list[tuple[float, int]] = [(0.0, 0)]
    for right in range(1, len(cuts)):
        costs = []
        for left in range(right - 1, -1, -1):
            seconds = Region(edges[left].start, edges[right].stop).seconds
            if seconds > 2 * lengths.longest and left < right - 1:
                break  # this piece would be rejected, and so would all longer ones
            cost = best[left][0] + _compute_cost(cuts[left : right + 1], seconds, units, lengths, bonus) + penalty * broken[right]
            crossed = bisect_left(voice_changes, edges[right].stop) - bisect_right(voice_changes, edges[left].start)
            costs.append((cost + WRONG_CLIP_PENALTY * max(0, crossed), left))
        best.append(min(costs))
    return [
        Piece(edges[left].start, edges[right].stop, tuple(units[cuts[left].unit : cuts[right].unit])) for left, right in _trace_path(best)
    ]


def score_sentence_end(unit: TextUnit) -> float:
    """Return the bonus for a cut after this word: highest at the end of a sentence."""
    text = unit.text.rstrip(CLOSING_MARKS)
    return SENTENCE_BONUS if text.endswith(SENTENCE_ENDS) else CLAUSE_BONUS if text.endswith(CLAUSE_ENDS) else 0.0


def score_utterance_end(_unit: TextUnit) -> float:
    """Return the bonus for a cut after an utterance: the transcript's segmentation is kept unless an utterance is too short for a clip."""
    return UTTERANCE_BONUS


def _measure_distance(gap: Region, boundary: tuple[int, int]) -> int:
    return max(0, gap.start - boundary[1], boundary[0] - gap.stop)


def _choose_pauses(pauses: list[Region], boundary: tuple[int, int]) -> list[Region]:
    """Return one near and long pause; or all touching pauses, if they enclose speech without text."""
    low, high = boundary
    slack = MASTER_RATE // 10
    touching = [pause for pause in pauses if _measure_distance(pause, boundary) == 0]
    if len(touching) > 1 and touching[0].stop >= low - slack and touching[-1].start <= high + slack:
        return touching
    return [min(touching or pauses, key=lambda pause: _measure_distance(pause, boundary) - min(pause.stop - pause.start, MASTER_RATE) / 2)]


def _drop_out_of_order(cuts: list[CutPoint]) -> list[CutPoint]:
    """Drop cuts whose text times contradict the order of the pauses."""
    kept: list[CutPoint] = []
    for cut in sorted(cuts, key=lambda cut: cut.gap.start):
        if not kept or cut.unit >= kept[-1].unit:
            kept.append(cut)
    return kept


def _find_broken_sentences(cuts: list[CutPoint], units: list[TextUnit], lengths: Lengths, bonus: Callable[[TextUnit], float]) -> list[bool]:
    """Return, for each cut, whether it is inside a sentence that is short enough for a clip. Text after a long pause or failed text counts
    as a sentence too, since no good clip reaches over these; text without a mark at its end does not."""
    marked = {index for index, unit in enumerate(units, start=1) if bonus(unit) >= SENTENCE_BONUS}
    failed = [index for index, unit in enumerate(units) if unit.error is not None]
    paused = (cut.unit for cut in cuts if cut.gap.seconds > LONG_PAUSE_SECONDS)
    ends = sorted({0, len(units), *marked, *paused, *failed, *(index + 1 for index in failed)})
    broken = []
    for cut in cuts:
        after = bisect_left(ends, cut.unit)
        inside = ends[after] > cut.unit and ends[after] in marked
        broken.append(inside and Region(units[ends[after - 1]].start, units[ends[after] - 1].stop).seconds <= lengths.longest)
    return broken


def _compute_cost(
    cuts: list[CutPoint], seconds: float, units: list[TextUnit], lengths: Lengths, bonus: Callable[[TextUnit], float]
) -> float:
    """Return the cost of one clip from the first to the last of `cuts`; those between are pauses inside it."""
    inside, inner = units[cuts[0].unit : cuts[-1].unit], cuts[1:-1]
    if not inside:  # speech without text: a separate piece, which is reported
        return WRONG_CLIP_PENALTY * len(inner)
    without_text = sum(one.unit == other.unit for one, other in itertools.pairwise(cuts))
    failed = sum(unit.error is not None for unit in inside)
    speech = sum(Region(one.gap.stop, other.gap.start).seconds for one, other in itertools.pairwise(cuts))
    is_rejected = (
        any(cut.gap.seconds > LONG_PAUSE_SECONDS for cut in inner)
        or 0 < failed < len(inside)
        or not lengths.shortest <= seconds <= lengths.longest
        or speech < LEAST_SPEECH_SHARE * seconds
    )
    cost = REJECTED_SECOND_PENALTY * speech + seconds if is_rejected else _rate_duration(seconds, lengths) - bonus(inside[-1])
    return cost + WRONG_CLIP_PENALTY * without_text


def _rate_duration(seconds: float, lengths: Lengths) -> float:
    """Return the cost of the duration of a clip: 0 at the target, 1 at twice the target."""
    return ((seconds - lengths.target) / lengths.target) ** 2


def _trace_path(best: list[tuple[float, int]]) -> list[tuple[int, int]]:
    right = len(best) - 1
    steps = []
    while right > 0:
        steps.append((best[right][1], right))
        right = best[right][1]
    return steps[::-1]


class _Edge(NamedTuple):
    """End of the clip before a cut, and start of the clip after it."""

    stop: int
    start: int


def _choose_edge(cut: CutPoint, audio: Audio) -> _Edge:
    """Return the end where the sound has faded into the pause: a model also learns the silence after it, and then generates it. Otherwise
    the end is at the quietest 10 ms of the second half of the tail, and the start at those of the second half of the lead. Neither lies
    beyond the middle of the pause."""
    gap, lead = cut.gap, int(LEAD_SECONDS * MASTER_RATE)
    earliest = gap.middle if gap.start else gap.start
    latest = gap.middle if gap.stop < len(audio.samples) else gap.stop
    first, half, last = (
        min(latest, gap.start + int(seconds * MASTER_RATE)) for seconds in (SHORTEST_TAIL_SECONDS, TAIL_SECONDS / 2, TAIL_SECONDS)
    )
    faded = find_faded(audio, gap, first, last)
    return _Edge(
        stop=find_quietest(audio, half, last) if faded is None else faded,
        start=find_quietest(audio, max(earliest, gap.stop - lead), max(earliest, gap.stop - lead // 2)),
    )
