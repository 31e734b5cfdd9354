"""How windows are packed, where words of a pack lie in the recording, and how failing packs are handled."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio
from overtone.data_prep.segmentation.clip_segmentation import TextUnit
from overtone.data_prep.segmentation.vad import Region
from overtone.data_prep.transcription import packed_transcription
from overtone.data_prep.transcription.packed_transcription import locate_word, pack_windows, sum_seconds

TWO = (Region(0, 2 * MASTER_RATE), Region(50 * MASTER_RATE, 53 * MASTER_RATE))
"""2 s and 3 s, with 48 s between them."""


def test_a_word_across_a_removed_pause_is_placed_by_its_middle() -> None:
    places = [locate_word(TWO, *times) for times in ((0.5, 1.0), (1.5, 2.3), (1.8, 2.5), (2.5, 3.0), (4.5, 6.0))]
    seconds = [(one.start / MASTER_RATE, one.stop / MASTER_RATE) for one in places]
    assert seconds == [(0.5, 1.0), (1.5, 2.0), (50.0, 50.5), (50.5, 51.0), (52.5, 53.0)]


def test_the_samples_of_a_pack_are_those_of_its_regions() -> None:
    audio = Audio(np.arange(60 * SPEECH_RATE, dtype=np.float32), SPEECH_RATE)
    sound = packed_transcription.join_samples(audio, TWO)
    assert len(sound) == 5 * SPEECH_RATE == sum_seconds(TWO) * SPEECH_RATE
    assert (sound[2 * SPEECH_RATE - 1], sound[2 * SPEECH_RATE]) == (2 * SPEECH_RATE - 1, 50 * SPEECH_RATE)
    with pytest.raises(ValueError, match="16000 Hz, not 24000"):
        packed_transcription.join_samples(Audio(audio.samples, MASTER_RATE), TWO)


@given(st.lists(st.tuples(st.integers(1, 40_000), st.integers(1, 29 * MASTER_RATE)), max_size=12))
def test_packs_hold_every_window_once_in_order_and_fit_into_whispers_30_s(steps) -> None:
    edges = list(itertools.accumulate(itertools.chain.from_iterable(steps)))
    windows = [Region(start, stop) for start, stop in zip(edges[::2], edges[1::2])]
    stretches = [stretch for one in pack_windows(windows) for stretch in one]
    assert len(stretches) == len(windows)
    assert all(outer.start <= inner.start < inner.stop <= outer.stop for outer, inner in zip(stretches, windows, strict=True))
    assert all(one.stop <= other.start for one, other in itertools.pairwise(stretches))
    assert all(sum_seconds(one) < 30 for one in pack_windows(windows))


@given(st.lists(st.integers(1, 28), min_size=1, max_size=60), st.sets(st.integers(0, 59), max_size=4))
def test_a_pack_that_fails_does_not_affect_the_others(lengths, bad) -> None:
    """Windows 10 s apart; the packs with a number in `bad` raise, alone and in every batch."""
    starts = [sum(lengths[:index]) + 10 * index for index in range(len(lengths))]
    windows = [Region(start * MASTER_RATE, (start + length) * MASTER_RATE) for start, length in zip(starts, lengths, strict=True)]
    every = pack_windows(windows)
    broken = [one for index, one in enumerate(every) if index in bad]

    def listen(batch: list[packed_transcription.Pack]) -> list[TextUnit]:
        assert len(batch) <= packed_transcription.BATCH
        if any(one in broken for one in batch):
            raise RuntimeError("no\nmore")
        return [TextUnit(text=" word", start=one[0].start, stop=one[0].stop) for one in batch]

    units = packed_transcription.transcribe_windows(windows, listen)
    assert [unit.start for unit in units] == sorted(unit.start for unit in units)
    assert sum(unit.text == " word" for unit in units) == len(every) - len(broken)
    assert [(unit.start, unit.stop) for unit in units if unit.error == "RuntimeError: no"] == [
        tuple(stretch) for one in broken for stretch in one
    ]


def test_batches_have_at_most_16_packs_longest_first() -> None:
    windows = [Region(40 * index * MASTER_RATE, (40 * index + 28) * MASTER_RATE - index) for index in range(40)]
    heard: list[list[packed_transcription.Pack]] = []
    packed_transcription.transcribe_windows(windows, lambda batch: heard.append(batch) or [])
    assert [len(batch) for batch in heard] == [16, 16, 8]
    assert [one for batch in heard for one in batch] == [(window,) for window in windows]


def test_the_seconds_of_finished_batches_are_reported() -> None:
    windows = [Region(number * 40 * MASTER_RATE, (number * 40 + 28) * MASTER_RATE) for number in range(20)]
    done: list[float] = []
    packed_transcription.transcribe_windows(windows, lambda _batch: [], report=done.append)
    assert done == [16 * 28.0, 20 * 28.0]
