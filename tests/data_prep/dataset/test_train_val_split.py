"""Validation uses whole recordings where possible and a block at the end otherwise; the same clips give the same split."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from overtone.data_prep.dataset.train_val_split import assign_splits
from overtone.data_prep.manifest import ManifestRow, Quality


def clip(recording: str, start: float, seconds: float = 5.0, speaker: str = "me", snr: float = 30.0, text: str = "") -> ManifestRow:
    quality = Quality(chars_per_second=12, speech_share=0.9, peak_dbfs=-3, clipped_share=0, snr_db=snr, edge_energy_db=(-40, -40))
    identity = f"{recording}_{round(start * 1000):08d}"
    return ManifestRow(
        id=identity,
        audio=f"clips/{identity}.flac",
        text=text or identity,
        speaker=speaker,
        duration=seconds,
        start=start,
        end=start + seconds,
        source=f"{recording}.wav",
        quality=quality,
    )


def validation(rows: list[ManifestRow], share: float) -> list[str]:
    return sorted(row.id for row in assign_splits(rows, share)[0] if row.split == "val")


def test_validation_clips_of_one_recording_are_a_block_at_its_end() -> None:
    rows = [clip("aa", 6.0 * index) for index in range(40)]
    assert validation(rows, 0.25) == [row.id for row in rows[-10:]]
    assert validation(rows, 0.001) == [row.id for row in rows[-5:]], "an eighth of forty: fewer than ten"
    assert validation(rows[:4], 0.001) == [rows[3].id]
    assert validation(rows, 0.0) == []


def test_at_least_ten_clips_or_three_percent_validate() -> None:
    assert len(validation([clip("aa", 6.0 * index) for index in range(120)], 0.001)) == 10
    assert len(validation([clip("aa", 6.0 * index) for index in range(500)], 0.001)) == 15


def test_small_recordings_are_validated_on_as_a_whole() -> None:
    rows = [clip(f"{number:02x}", 6.0 * index) for number in range(40) for index in range(3)]
    chosen = validation(rows, 0.1)
    recordings = {identity.split("_")[0] for identity in chosen}
    assert all(sum(identity.startswith(recording) for identity in chosen) == 3 for recording in recordings)
    assert 0.05 < len(chosen) / len(rows) <= 0.15


def test_large_recordings_give_their_last_clips_in_turn() -> None:
    rows = [clip(recording, 6.0 * index) for recording in ("aa", "bb") for index in range(20)]
    assert validation(rows, 0.05) == ["aa_00102000", "aa_00108000", "aa_00114000", "bb_00108000", "bb_00114000"]


def test_damaged_recordings_validate_only_if_there_is_no_other() -> None:
    rows = [clip("aa", 0), *(clip("bb", 6.0 * index) for index in range(40))]
    kept, _ = assign_splits(rows, 0.05, damaged={"aa.wav"})
    assert {row.source for row in kept if row.split == "val"} == {"bb.wav"}
    kept, _ = assign_splits(rows, 0.05, damaged={"aa.wav", "bb.wav"})
    assert any(row.split == "val" for row in kept)


def test_no_text_and_no_take_is_in_both_splits() -> None:
    rows = [clip(f"{number:02x}", 6.0 * index, text=f"Sentence {number * index % 37}.") for number in range(30) for index in range(3)]
    ends = [clip("ff", 6.0 * index, text="Thank you!" if index > 30 else "") for index in range(40)]
    takes = {row.id: f"take {index // 2}" for index, row in enumerate(ends[:31])}
    kept, _ = assign_splits([*rows, *ends], 0.1, takes)
    sides = [{row.text.lower() for row in kept if row.split == split} for split in ("train", "val")]
    assert sides[1] and not sides[0] & sides[1]
    sounds = [{takes[row.id] for row in kept if row.split == split and row.id in takes} for split in ("train", "val")]
    assert not sounds[0] & sounds[1]
    assert len([row for row in kept if row.split == "val"]) >= 10


def test_every_speaker_keeps_something_to_train_on_and_has_a_reference() -> None:
    rows = [clip("aa", 0, speaker="one"), *(clip("bb", 6.0 * index, speaker="two") for index in range(4))]
    result = {row.id: row for row in assign_splits(rows, 0.5)[0]}
    assert result["aa_00000000"].split == "train"
    assert {row.speaker: row.ref_audio for row in result.values()} == {"one": "refs/one.wav", "two": "refs/two.wav"}


def test_a_recording_in_both_splits_has_a_gap_of_five_seconds_between_them() -> None:
    rows = [clip("aa", 2.0 * index, seconds=1.9) for index in range(80)]
    kept, between = assign_splits(rows, 0.025)
    begin = min(row.start for row in kept if row.split == "val")
    assert begin == 140
    assert [row.start for row in between] == [134.0, 136.0, 138.0]
    assert all(row.end <= begin - 5 for row in kept if row.split == "train")
    assert assign_splits(rows, 0.0)[1] == []
    few = rows[:50]  # of these, three are more than a twentieth
    assert assign_splits(few, 0.025)[1] == []


PLACES = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 50)), min_size=1, max_size=60, unique=True)


@given(PLACES, st.floats(0, 0.9), st.randoms())
def test_the_split_ignores_the_order_and_loses_no_clip(places, share, shuffler: random.Random) -> None:
    rows = [clip(recording, float(start), speaker="me" if recording < "c" else "you") for recording, start in places]
    shuffled = shuffler.sample(rows, len(rows))
    assert validation(rows, share) == validation(shuffled, share)
    result, between = assign_splits(rows, share)
    assert sorted(row.id for row in (*result, *between)) == sorted(row.id for row in rows)
    for speaker in {row.speaker for row in rows}:
        assert any(row.split == "train" for row in result if row.speaker == speaker)
