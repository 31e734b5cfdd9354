"""Division of a long recording into parts."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.segmentation.recording_parts import STEP, find_next_part, list_parts, select_regions
from overtone.data_prep.segmentation.vad import Region
from tests.data_prep.segmentation.test_vad import spans

SECOND = MASTER_RATE


def speak(*edges: float) -> list[Region]:
    """Regions from their starts and stops in seconds."""
    return [Region(round(start * SECOND), round(stop * SECOND)) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def test_a_recording_of_twice_the_target_is_one_part() -> None:
    regions = speak(0, 5, 8, 20)
    assert list_parts(regions, 20 * SECOND, 10.0, []) == [Region(0, 20 * SECOND)]
    assert len(list_parts(regions, 20 * SECOND + 1, 10.0, [])) == 2


def test_a_part_ends_in_the_middle_of_the_longest_pause_in_its_range() -> None:
    """5 to 15 s after the start of a part of 10 s; the pause of 4 s is too early."""
    regions = speak(0, 1, 5, 7, 8, 11, 13, 14.9, 15, 30)
    assert list_parts(regions, 30 * SECOND, 10.0, []) == [Region(0, 12 * SECOND), Region(12 * SECOND, 30 * SECOND)]


def test_without_a_pause_in_its_range_a_part_is_longer() -> None:
    assert list_parts(speak(0, 21, 22, 30), 30 * SECOND, 10.0, [])[0].stop == 21.5 * SECOND // STEP * STEP
    assert list_parts(speak(0, 30), 30 * SECOND, 10.0, []) == [Region(0, 30 * SECOND)]


def test_a_pause_inside_an_utterance_is_used_only_if_there_is_no_other() -> None:
    regions = speak(0, 7, 9, 12, 12.5, 30)
    whole, other = Region(0, 11 * SECOND), Region(13 * SECOND, 29 * SECOND)
    assert list_parts(regions, 30 * SECOND, 10.0, [])[0].stop == 8 * SECOND
    assert list_parts(regions, 30 * SECOND, 10.0, [whole, other])[0].stop == 12.25 * SECOND // STEP * STEP
    assert list_parts(regions, 30 * SECOND, 10.0, [Region(0, 29 * SECOND)])[0].stop == 8 * SECOND


@given(spans(), st.floats(1.0, 60.0))
def test_the_parts_fill_the_recording_and_each_region_is_in_one(case, seconds: float) -> None:
    regions, length = case
    found = list_parts(regions, length, seconds, [])
    assert (found[0].start, found[-1].stop) == (0, length)
    assert all(one.stop == other.start and one.stop % STEP == 0 for one, other in itertools.pairwise(found))
    moved = [(part.start + region.start, part.start + region.stop) for part in found for region in select_regions(regions, part)]
    assert moved == regions
    assert all(0 <= region.start < region.stop <= part.stop - part.start for part in found for region in select_regions(regions, part))
    assert len(found) == 1 or all(select_regions(regions, part) for part in found)
    assert all(part.seconds >= seconds / 2 for part in found[:-1])


@given(spans(), spans(), st.floats(1.0, 60.0))
def test_the_parts_of_a_recording_that_is_being_decoded_are_those_of_the_whole(case, transcript, seconds: float) -> None:
    """Region by region, with the utterances of a transcript; the last part is known at the end only."""
    (regions, length), (utterances, _) = case, transcript
    early, start = list[Region](), 0
    for count in range(len(regions) + 1):
        while part := find_next_part([one for one in regions[:count] if one.start >= start], start, length, seconds, utterances):
            early.append(part)
            start = part.stop
    whole = list_parts(regions, length, seconds, utterances)
    assert early == whole[: len(early)] and len(early) < len(whole)


def test_a_part_is_known_once_speech_begins_after_its_range() -> None:
    """5 to 15 s; a pause that begins in it may be the longest."""
    regions = speak(0, 7, 8, 11, 12, 14, 17, 30)
    assert [find_next_part(regions[:count], 0, 30 * SECOND, 10.0, []) for count in range(4)] == [None] * 4
    assert find_next_part(regions, 0, 30 * SECOND, 10.0, []) == Region(0, 7.5 * SECOND // STEP * STEP)
    assert find_next_part(regions, 0, 20 * SECOND, 10.0, []) is None, "it is not divided"


def test_a_part_that_is_begun_early_does_not_end_inside_an_utterance() -> None:
    regions, said = speak(0, 7, 9, 12, 12.5, 16, 16.5, 30), [Region(0, 11 * SECOND)]
    part = find_next_part(regions, 0, 30 * SECOND, 10.0, said)
    assert part == list_parts(regions, 30 * SECOND, 10.0, said)[0] == Region(0, 12.25 * SECOND // STEP * STEP)
