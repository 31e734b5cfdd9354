"""Duplicates: copies in other formats, at other levels, shifted or cut differently are found, other sounds are not; the best is kept."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
import soundfile
import soxr

from data_prep.audio.waveform import MASTER_RATE
from data_prep.clips.duplicates import DuplicateCandidate, find_duplicates, normalise_text
from data_prep.clips.fingerprint_matching import FingerprintedClip
from data_prep.clips.fingerprints import compute_fingerprint

FIRST = "The night train to the north leaves from platform seven."


@pytest.fixture(scope="module")
def sentences(railway, said) -> list[np.ndarray]:
    return [railway.samples[int(one["start"] * MASTER_RATE) : int(one["end"] * MASTER_RATE)] for one in said]


def candidate(name: str, sound: np.ndarray, text: str = "", quality: float = 0.0, start: int = 0) -> DuplicateCandidate:
    """A clip that is all of its recording after `start` samples."""
    padded = np.concatenate([np.zeros(start, np.float32), sound]).astype(np.float32)
    words = compute_fingerprint(padded, start, len(padded))
    return DuplicateCandidate(FingerprintedClip(name, f"recording {name}", start, len(padded), words), text, quality)


def copy(sound: np.ndarray, form: str, subtype: str, rate: int) -> np.ndarray:
    file = io.BytesIO()
    soundfile.write(file, np.clip(0.5 * soxr.resample(sound, MASTER_RATE, rate), -1, 1), rate, format=form, subtype=subtype)
    file.seek(0)
    samples, read_rate = soundfile.read(file, dtype="float32")
    return soxr.resample(samples, read_rate, MASTER_RATE)


COPIES = [("MP3", "MPEG_LAYER_III", 16_000), ("OGG", "VORBIS", 24_000), ("OGG", "OPUS", 24_000), ("WAV", "ULAW", 8_000)]


@pytest.mark.parametrize("format_", COPIES, ids=lambda one: one[1])
def test_a_copy_in_another_format_is_a_duplicate_whatever_its_text(sentences, format_) -> None:
    sound = sentences[0]
    made = [candidate("b", sound, FIRST, quality=1.0), candidate("a", copy(sound, *format_)[: len(sound) - 300], "Something else.")]
    assert find_duplicates(made).kept == {"a": "b"}


def test_quiet_shifted_noisy_and_clipped_copies_are_duplicates_of_the_best(sentences) -> None:
    sound = sentences[0]
    noise = np.random.default_rng(0).standard_normal(len(sound))
    clips = [
        candidate("a", 0.05 * sound, FIRST, quality=1.0),
        candidate("b", sound, FIRST, start=12_345, quality=2.0),
        candidate("c", sound + 0.2 * sound.std() * noise, FIRST, quality=3.0),
        candidate("d", np.clip(6 * sound, -0.5, 0.5), FIRST, quality=4.0),
        candidate("e", sound, FIRST, quality=5.0),
    ]
    found = find_duplicates(clips)
    assert found.kept == dict.fromkeys("abcd", "e")
    assert found.takes == dict.fromkeys("abcde", "a")
    assert find_duplicates(clips, wanted=frozenset("a")).kept == dict.fromkeys("bcde", "a"), "one that a person keeps wins"


def test_copies_that_were_cut_at_other_pauses_are_found(railway) -> None:
    """Half of the second clip is in the first one: it is kept. All of the third is: it is a duplicate."""
    sound, second = railway.samples[: 20 * MASTER_RATE], MASTER_RATE

    def cut(name: str, recording: str, start: float, stop: float, quality: float) -> DuplicateCandidate:
        begin, end = round(start * second), round(stop * second)
        return DuplicateCandidate(FingerprintedClip(name, recording, begin, end, compute_fingerprint(sound, begin, end)), "", quality)

    found = find_duplicates([cut("a", "best", 0, 8, 1.0), cut("b", "copy", 5, 12, 0.0), cut("c", "copy", 2, 5, 0.0)])
    assert found.kept == {"c": "a"}
    assert found.takes == dict.fromkeys("abc", "a")


def test_other_sentences_are_no_duplicates_even_with_one_text(sentences) -> None:
    assert len(sentences) == 8
    for one, other in itertools.combinations(sentences, 2):
        shortest = min(len(one), len(other))
        found = find_duplicates([candidate("a", one[:shortest], FIRST), candidate("b", other[:shortest], FIRST)])
        assert not found.kept and not found.takes


def test_a_short_clip_without_equal_words_is_found_by_its_text(sentences) -> None:
    """A second of speech with loud noise has too few undamaged words."""
    sound = sentences[0][:MASTER_RATE]
    noisy = sound + 0.5 * sound.std() * np.random.default_rng(1).standard_normal(len(sound))
    assert find_duplicates([candidate("a", sound, "Now.", 1.0), candidate("b", noisy, "now")]).kept == {"b": "a"}


def test_only_words_are_compared() -> None:
    assert normalise_text("  It’s — “Two” o'clock!") == normalise_text("it's two o’clock")
    assert normalise_text("CAFÉ") == normalise_text("cafe\u0301")
    assert normalise_text("是的。") == "是 的"
