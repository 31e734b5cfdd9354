"""Times of cues against the starts of speech: delays are measured, cues of another recording are not trusted."""

from __future__ import annotations

import random

import pytest

from data_prep.audio.waveform import MASTER_RATE
from data_prep.segmentation.clip_segmentation import TextUnit
from data_prep.segmentation.subtitle_sync import LEAST_CUES, check_timing, measure_delay, shift_units
from data_prep.segmentation.vad import Region


def talk(seed: int, count: int) -> tuple[list[TextUnit], list[Region]]:
    """Cues of 1 to 6 s and the speech in them, which pauses briefly within each; 0.4 to 1.5 s between them."""
    chance, position = random.Random(seed), 0.7
    units, regions = [], []
    for _ in range(count):
        end = position + chance.uniform(1.0, 6.0)
        middle = (position + end) / 2
        units.append(TextUnit(text=" x", start=round(position * MASTER_RATE), stop=round(end * MASTER_RATE)))
        for start, stop in ((position, middle - 0.1), (middle + 0.1, end)):
            regions.append(Region(round(start * MASTER_RATE), round(stop * MASTER_RATE)))
        position = end + chance.uniform(0.4, 1.5)
    return units, regions


@pytest.mark.parametrize("delay", [1.0, -0.7, 4.5])
def test_a_delay_is_measured_and_undone(delay) -> None:
    units, regions = talk(0, 30)
    late = shift_units(units, -delay)
    if delay > 0:
        assert late[0].start == units[0].start + round(delay * MASTER_RATE)
    assert measure_delay(late, regions) == pytest.approx(delay, abs=0.05)
    moved = shift_units(late, measure_delay(late, regions))
    assert all(timing.is_trusted for timing in check_timing(moved, regions))
    assert not all(timing.is_trusted for timing in check_timing(late, regions))


def test_right_and_inexact_times_are_left_alone() -> None:
    units, regions = talk(0, 30)
    chance = random.Random(1)
    rough = [unit.model_copy(update={"start": max(0, unit.start + round(chance.uniform(-0.25, 0.25) * MASTER_RATE))}) for unit in units]
    for one in (units, rough):
        assert measure_delay(one, regions) == 0.0
        assert all(timing.is_trusted for timing in check_timing(one, regions))


@pytest.mark.parametrize("seed", range(1, 6))
def test_cues_of_another_recording_are_not_trusted(seed) -> None:
    units, _ = talk(0, 24)
    _, regions = talk(seed, 24)
    assert measure_delay(units, regions) == 0.0
    assert not any(timing.is_trusted for timing in check_timing(units, regions))


def test_the_wrong_half_of_a_file_is_found() -> None:
    units, regions = talk(0, 60)
    wrong, _ = talk(9, 60)
    border = units[30].start
    mixed = units[:30] + [one for one in wrong if one.start >= border]
    assert [timing.is_trusted for timing in check_timing(mixed, regions)][:2] == [True, False]


def test_few_cues_are_not_checked() -> None:
    units, regions = talk(0, LEAST_CUES)
    assert len(check_timing(units, regions)) == 1
    assert check_timing(units[1:], regions) == []
    assert measure_delay(shift_units(units[1:], -2.0), regions) == 0.0
