"""Times of cues against the starts of speech: delays are measured, cues of another recording are not trusted."""

from __future__ import annotations

import random

import pytest

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.segmentation.clip_segmentation import TextUnit
from overtone.data_prep.segmentation.subtitle_sync import (
    FEW_CORRELATION,
    FEW_CUES,
    GOOD_CORRELATION,
    LEAST_CUES,
    check_timing,
    find_unspoken,
    measure_delay,
    shift_units,
)
from overtone.data_prep.segmentation.vad import Region


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


@pytest.mark.parametrize("seed", range(1, 6))
def test_eight_cues_have_to_fit_better_than_many(seed) -> None:
    units, regions = talk(0, 8)
    (right,) = check_timing(units, regions)
    (wrong,) = check_timing(units, talk(seed, 8)[1])
    assert right.is_trusted and not wrong.is_trusted
    assert right.least_correlation == FEW_CORRELATION > GOOD_CORRELATION
    assert not right._replace(correlation=GOOD_CORRELATION, deviations=0.0).is_trusted
    assert right._replace(correlation=GOOD_CORRELATION, deviations=0.0, cues=FEW_CUES).is_trusted


def test_few_cues_are_not_checked_and_their_delay_is_not_measured() -> None:
    units, regions = talk(0, FEW_CUES)
    assert check_timing(units[: LEAST_CUES - 1], regions) == []
    assert len(check_timing(units[:LEAST_CUES], regions)) == 1
    late = shift_units(units, -2.0)
    assert measure_delay(late, regions) == pytest.approx(2.0, abs=0.05)
    assert measure_delay(late[1:], regions) == 0.0


def test_cues_in_whose_time_nobody_speaks_are_found() -> None:
    units, regions = talk(0, 8)
    pause = units[3].model_copy(update={"start": units[3].stop + 2400, "stop": units[4].start - 2400})
    instant = units[5].model_copy(update={"start": units[5].start + 4800, "stop": units[5].start + 4800})  # no duration, but in speech
    late = units[6].model_copy(update={"start": (units[6].start + units[6].stop) // 2, "stop": units[6].stop + 4800})
    cues = [*units[:4], pause, units[4], instant, late, units[7]]
    assert find_unspoken(cues, regions) == [pause]
    assert find_unspoken(cues, []) == cues
