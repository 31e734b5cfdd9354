"""Validation by recording where possible, by a block at the end otherwise; the same clips give the same answer."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from data_prep.manifest import Row
from data_prep.score import Quality
from data_prep.split import assign


def clip(recording: str, start: float, seconds: float = 5.0, speaker: str = "me", snr: float = 30.0) -> Row:
    quality = Quality(chars_per_second=12, speech_share=0.9, peak_dbfs=-3, clipped_share=0, snr_db=snr, edge_energy_db=(-40, -40))
    identity = f"{recording}_{round(start * 1000):08d}"
    return Row(id=identity, audio=f"clips/{identity}.flac", text="a", speaker=speaker, duration=seconds, start=start, quality=quality)


def validation(rows: list[Row], share: float) -> list[str]:
    return sorted(row.id for row in assign(rows, share) if row.split == "val")


def test_one_recording_gives_a_block_at_its_end() -> None:
    rows = [clip("aa", 6.0 * index) for index in range(40)]
    assert validation(rows, 0.05) == [row.id for row in rows[-2:]]
    assert validation(rows, 0.001) == [rows[-1].id]
    assert validation(rows, 0.0) == []


def test_whole_recordings_where_they_are_small_enough() -> None:
    rows = [clip(f"{number:02x}", 6.0 * index) for number in range(40) for index in range(3)]
    chosen = validation(rows, 0.1)
    recordings = {identity.split("_")[0] for identity in chosen}
    assert all(sum(identity.startswith(recording) for identity in chosen) == 3 for recording in recordings)
    assert 0.05 < len(chosen) / len(rows) <= 0.15


def test_two_large_recordings_are_not_halved() -> None:
    rows = [clip(recording, 6.0 * index) for recording in ("aa", "bb") for index in range(20)]
    chosen = validation(rows, 0.05)
    assert chosen == ["aa_00108000", "aa_00114000"]


def test_every_speaker_keeps_something_to_train_on_and_a_reference_from_it() -> None:
    rows = [clip("aa", 0, speaker="one"), *(clip("bb", 6.0 * index, speaker="two", snr=20 + index) for index in range(4))]
    result = {row.id: row for row in assign(rows, 0.5)}
    assert result["aa_00000000"].split == "train"
    assert result["aa_00000000"].ref_audio == "clips/aa_00000000.flac"
    references = {row.ref_audio for row in result.values() if row.speaker == "two"}
    assert references == {"clips/bb_00006000.flac"}  # of the two that train, the cleaner
    assert result["bb_00006000"].split == "train"


def test_a_reference_is_about_six_seconds_before_it_is_clean() -> None:
    rows = [clip("aa", 0, seconds=1.5, snr=60), clip("aa", 10, seconds=6), clip("aa", 20, seconds=18, snr=60)]
    assert {row.ref_audio for row in assign(rows, 0.0)} == {"clips/aa_00010000.flac"}


PLACES = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 50)), min_size=1, max_size=60, unique=True)


@given(PLACES, st.floats(0, 0.9), st.randoms())
def test_the_order_does_not_matter_and_nothing_is_lost(places, share, shuffler: random.Random) -> None:
    rows = [clip(recording, float(start), speaker="me" if recording < "c" else "you") for recording, start in places]
    shuffled = shuffler.sample(rows, len(rows))
    assert validation(rows, share) == validation(shuffled, share)
    result = assign(rows, share)
    assert {row.id for row in result} == {row.id for row in rows}
    for speaker in {row.speaker for row in rows}:
        assert any(row.split == "train" for row in result if row.speaker == speaker)
