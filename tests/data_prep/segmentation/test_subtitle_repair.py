"""Times of cues with another clock or with jumps: repaired where the pauses of the speech prove it, left out where not."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.segmentation.clip_segmentation import TextUnit
from overtone.data_prep.segmentation.subtitle_repair import WINDOW_CUES, describe_repair, repair_times
from overtone.data_prep.segmentation.vad import Region

CUES = 90
EXACT = 0.25
"""Seconds: what a repaired time may be wrong by, with the times of the cues wrong by 0.1 s."""


def talk(seed: int, count: int = CUES) -> list[tuple[float, float]]:
    """Start and stop of utterances of 1 to 6 s with 0.4 to 1.5 s between them."""
    chance, position, found = random.Random(seed), 0.7, []
    for _ in range(count):
        stop = position + chance.uniform(1.0, 6.0)
        found.append((position, stop))
        position = stop + chance.uniform(0.4, 1.5)
    return found


def make_regions(spoken) -> list[Region]:
    """Speech with a brief pause inside each utterance."""
    edges = [(start, (start + stop) / 2 - 0.1, (start + stop) / 2 + 0.1, stop) for start, stop in spoken]
    return [Region(round(one * MASTER_RATE), round(other * MASTER_RATE)) for a, b, c, d in edges for one, other in ((a, b), (c, d))]


def make_cues(spoken, clock=1.0, seed=0) -> list[TextUnit]:
    """Numbered cues for the utterances, by a clock that is fast by a factor."""
    chance = random.Random(seed)
    times = [((start + chance.uniform(-0.1, 0.1)) * clock, stop * clock) for start, stop in spoken]
    return [
        TextUnit(text=f" {number}", start=max(0, round(one * MASTER_RATE)), stop=round(other * MASTER_RATE))
        for number, (one, other) in enumerate(times)
    ]


def edit(spoken, edits):
    """(utterances in the sound, number → place) after (time, seconds) are inserted, with speech in them, or cut out if negative."""
    sound, places, shift, cut_until = [], {}, 0.0, 0.0
    edits = list(edits)
    for number, (start, stop) in enumerate(spoken):
        while edits and start >= edits[0][0]:
            time, seconds = edits.pop(0)
            if seconds > 0:
                sound += [(time + shift + at, time + shift + at + 1.8) for at in range(1, int(seconds) - 2, 3)]
            else:
                cut_until = time - seconds
            shift += seconds
        if start >= cut_until:
            places[number] = start + shift
            sound.append((start + shift, stop + shift))
    return sorted(sound), places


def count_wrong(found, places) -> int:
    return sum(abs(places.get(int(unit.text), -99.0) - unit.start / MASTER_RATE) > EXACT for unit in found.units)


@pytest.mark.parametrize("ppm", [-1_000, 7_000, 41_667])
def test_a_drifting_clock_is_measured_and_undone(ppm) -> None:
    spoken = talk(0)
    found = repair_times(make_cues(spoken, 1 + ppm * 1e-6), make_regions(spoken))
    assert len(found.segments) == 1 and found.segments[0].drift_ppm == pytest.approx(ppm, abs=400)
    assert len(found.units) >= 0.9 * CUES and count_wrong(found, dict(enumerate(start for start, _ in spoken))) == 0
    assert len(found.units) + found.left_out == CUES


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("edits", [[(0.4, 15)], [(0.4, -60)], [(0.34, 60), (0.68, 15)], [(0.36, -15), (0.66, 30)], [(0.0, 45)]])
def test_jumps_are_repaired_on_both_sides(edits, seed) -> None:
    spoken = talk(seed)
    sound, places = edit(spoken, [(share * spoken[-1][1], seconds) for share, seconds in edits])
    found = repair_times(make_cues(spoken), make_regions(sound))
    shifts = [0.0] * (edits[0][0] > 0)
    for _, seconds in edits:
        shifts.append((shifts[-1] if shifts else 0.0) + seconds)
    assert [-segment.offset for segment in found.segments] == pytest.approx(shifts, abs=0.15)
    assert count_wrong(found, places) == 0 and len(found.units) >= len(places) - 12 * len(edits)
    assert all(one.stop <= other.start + MASTER_RATE // 5 for one, other in pairwise(found.units))


def test_speech_at_a_break_and_beside_left_out_cues_is_named() -> None:
    spoken = talk(1)
    time = 0.4 * spoken[-1][1]
    sound, _ = edit(spoken, [(time, 30)])
    found = repair_times(make_cues(spoken), make_regions(sound))
    inserted = [region for region in make_regions(sound) if time + 1 < region.start / MASTER_RATE < time + 28]
    assert inserted and set(inserted) <= set(found.unproven)
    assert not any(unit.start < region.middle < unit.stop for unit in found.units for region in found.unproven)
    text = describe_repair(found)
    assert f"from {found.segments[1].start:.1f} s on 30.0" in text and "s early" in text and f"{found.left_out} cues left out" in text


def test_an_end_that_does_not_fit_is_left_out() -> None:
    spoken = talk(2)
    sound, places = edit(spoken, [(spoken[80][0], 30)])
    found = repair_times(make_cues(spoken), make_regions(sound))
    assert len(found.segments) == 1 and found.has_other_ends
    assert count_wrong(found, places) == 0 and found.left_out >= 8
    assert not repair_times(make_cues(spoken), make_regions(spoken)).has_other_ends


@pytest.mark.parametrize("at_the_end", [False, True])
def test_cues_that_begin_before_their_speech_are_no_other_end(at_the_end) -> None:
    """None of them alone fits as exactly as the cues of the rest."""
    spoken = talk(2)
    early = range(CUES - 10, CUES) if at_the_end else range(10)
    cues = [
        cue.model_copy(update={"start": cue.start - MASTER_RATE // 4}) if at in early else cue for at, cue in enumerate(make_cues(spoken))
    ]
    found = repair_times(cues, make_regions(spoken))
    assert found.left_out >= 8 and not found.has_other_ends


@pytest.mark.parametrize("seed", range(2))
def test_cues_of_another_recording_prove_nothing(seed) -> None:
    assert repair_times(make_cues(talk(seed)), make_regions(talk(seed + 100))).segments == []


def test_few_cues_and_even_speech_prove_nothing() -> None:
    spoken = talk(0, 2 * WINDOW_CUES - 1)
    assert repair_times(make_cues(spoken), make_regions(spoken)).segments == []
    even = [(3.0 * number + 0.5, 3.0 * number + 2.5) for number in range(CUES)]
    assert repair_times(make_cues(even), make_regions(even)).segments == [], "every offset of 3 s fits as well"
