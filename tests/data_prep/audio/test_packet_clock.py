"""The times of packets become silence where sound is absent, and nothing where they are only inexact."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overtone.data_prep.audio.decoded_stream import AudioError
from overtone.data_prep.audio.packet_clock import LONGEST_PAUSE, PacketClock

MILLISECOND = Fraction(1, 1000)


def place(clock: PacketClock, times: list[Fraction | None], samples: int = 960) -> list[int]:
    return [clock.place(time, samples) for time in times]


def regular(count: int, rate: int = 48_000, samples: int = 960) -> list[Fraction]:
    return [Fraction(number * samples, rate) for number in range(count)]


@given(st.sampled_from([(48_000, 960), (44_100, 1024), (22_050, 1152), (8_000, 160)]), st.integers(0, 10**6), st.booleans())
@settings(max_examples=15, deadline=None)
def test_rounded_times_add_and_drop_nothing(kind: tuple[int, int], start: int, down: bool) -> None:
    """Matroska rounds to milliseconds, some programs down."""
    rate, samples = kind
    exact = [start * MILLISECOND / 7 + time for time in regular(500, rate, samples)]
    rounded = [(time // MILLISECOND if down else round(time / MILLISECOND)) * MILLISECOND for time in exact]
    clock = PacketClock(rate, MILLISECOND)
    assert not any(place(clock, rounded, samples))
    assert (clock.written, clock.describe()) == (500 * samples, [])


@given(st.lists(st.integers(-9, 9), min_size=50, max_size=200))
@settings(max_examples=15, deadline=None)
def test_a_live_recorder_may_be_nine_milliseconds_early_or_late(jitter: list[int]) -> None:
    """Of 60 ms packets, as browsers write them."""
    times = [time + late * MILLISECOND for time, late in zip(regular(len(jitter), samples=2880), jitter, strict=True)]
    assert not any(place(PacketClock(48_000, MILLISECOND), times, 2880))


@given(st.sets(st.integers(1, 299), min_size=1, max_size=60))
@settings(max_examples=15, deadline=None)
def test_each_lost_packet_becomes_silence_and_none_of_it_adds_up(lost: set[int]) -> None:
    kept = [number for number in range(301) if number not in lost]
    clock = PacketClock(48_000, MILLISECOND)
    position = 0
    for number in kept:
        position += clock.place(round(Fraction(number, 50) / MILLISECOND) * MILLISECOND, 960)
        assert abs(position - 960 * number) <= 48, "a packet is a millisecond from its place"
        position += 960
    assert clock.written == position


def test_a_pause_is_silence_to_the_sample() -> None:
    clock = PacketClock(44_100, Fraction(1, 44_100))
    assert place(clock, [Fraction(0), Fraction(1024 + 12_345, 44_100), Fraction(2048 + 12_345, 44_100)], 1024) == [0, 12_345, 0]
    assert clock.describe() == ["0.28 s of silence where its packets pause or are lost (at 0.02 s)"]


def test_small_steps_add_up_to_silence() -> None:
    """Times that run 0.1 % faster than the samples: after an hour they would be 3.6 s ahead."""
    clock = PacketClock(48_000, MILLISECOND)
    for time in regular(50 * 120):
        clock.place(time * Fraction(1001, 1000), 960)
    assert clock.written / 48_000 == pytest.approx(120.12, abs=0.1)


@pytest.mark.parametrize(
    ("picture", "broadcast", "silence"), [(0, False, 2.0), (None, False, 0), (1.96, False, 0), (-20, True, 0), (-20, False, 22)]
)
def test_a_late_start_is_silence_unless_nothing_started_before(picture: float | None, broadcast: bool, silence: float) -> None:
    start = None if picture is None else Fraction(picture)
    assert PacketClock(48_000, MILLISECOND, start, broadcast).place(Fraction(2), 960) == silence * 48_000


def test_times_that_go_back_lose_no_sound_and_are_mentioned() -> None:
    back = PacketClock(48_000, MILLISECOND)
    assert place(back, [*regular(100), *regular(100)]) == [0] * 200
    assert back.describe() == ["the clock of its packets is set anew, taken for no pause (at 2.00 s)"]
    overlap = PacketClock(48_000, MILLISECOND)
    assert place(overlap, [*regular(100), *(time + Fraction(19, 10) for time in regular(100))]) == [0] * 200
    assert overlap.describe() == ["packets whose times overlap by up to 0.10 s, all played (at 2.00 s)"]


def test_a_pause_after_an_overlap_is_shorter_by_it() -> None:
    clock = PacketClock(48_000, MILLISECOND)
    place(clock, [*regular(100), *(time + Fraction(17, 10) for time in regular(100))])
    assert clock.place(Fraction(5), 960) == 48_000


@pytest.mark.parametrize(("broadcast", "silence"), [(False, 9 * 3600), (True, 0)])
def test_a_broadcast_may_set_its_clock_anew(broadcast: bool, silence: int) -> None:
    clock = PacketClock(48_000, MILLISECOND, None, broadcast)
    place(clock, regular(50))
    assert clock.place(Fraction(1 + 9 * 3600), 960) == silence * 48_000
    assert clock.place(Fraction(1 + 9 * 3600) + Fraction(1, 50), 960) == 0


def test_a_jump_of_years_is_refused() -> None:
    clock = PacketClock(48_000, MILLISECOND)
    place(clock, regular(50))
    with pytest.raises(AudioError, match=r"jump by [\d,]+ hours at 1.00 s; write the file again"):
        clock.place(Fraction(LONGEST_PAUSE + 2), 960)


def test_packets_without_a_time_follow_the_others() -> None:
    clock = PacketClock(48_000, MILLISECOND)
    assert place(clock, [None, Fraction(1), None, Fraction(1) + Fraction(40, 1000), None]) == [0] * 5
    assert clock.describe() == []
