"""Duplicates: copies in other formats and rates are found, and different takes of similar length are not."""

from __future__ import annotations

import io
import itertools
import random

import numpy as np
import pytest
import soundfile
import soxr

from data_prep.audio.waveform import MASTER_RATE
from data_prep.clips.duplicates import DuplicateCandidate, compute_spectrum, find_duplicates, normalise_text

FIRST, SECOND = "The night train to the north leaves from platform seven.", "It carries letters."


@pytest.fixture(scope="module")
def sentences(railway, said) -> list[np.ndarray]:
    return [railway.samples[int(one["start"] * MASTER_RATE) : int(one["end"] * MASTER_RATE)] for one in said]


def found(sounds: dict[str, tuple[str, np.ndarray]]) -> dict[str, str]:
    clips = [DuplicateCandidate(name, text, len(sound)) for name, (text, sound) in sounds.items()]
    random.Random(0).shuffle(clips)
    return find_duplicates(clips, lambda name: sounds[name][1])


def copy(sound: np.ndarray, form: str, subtype: str, rate: int) -> np.ndarray:
    file = io.BytesIO()
    soundfile.write(file, np.clip(0.5 * soxr.resample(sound, MASTER_RATE, rate), -1, 1), rate, format=form, subtype=subtype)
    file.seek(0)
    samples, read_rate = soundfile.read(file, dtype="float32")
    return soxr.resample(samples, read_rate, MASTER_RATE)


def test_identical_samples_are_duplicates_whatever_their_texts(sentences) -> None:
    sound = sentences[0]
    assert found({"c": (FIRST, sound), "a": ("", sound), "b": (SECOND, sound.copy())}) == {"b": "a", "c": "a"}


COPIES = [("MP3", "MPEG_LAYER_III", 16_000), ("OGG", "VORBIS", 24_000), ("OGG", "OPUS", 24_000), ("WAV", "ULAW", 8_000)]


@pytest.mark.parametrize("format_", COPIES, ids=lambda one: one[1])
def test_a_copy_in_another_format_at_another_level_is_a_duplicate(sentences, format_) -> None:
    sound = sentences[0]
    assert found({"b": (FIRST.upper(), sound), "a": (FIRST, copy(sound, *format_)[: len(sound) - 300])}) == {"b": "a"}


def test_clips_with_another_text_length_or_sound_are_no_duplicates(sentences) -> None:
    sound = sentences[0]
    again = copy(sound, "OGG", "VORBIS", 24_000)
    assert found({"a": (FIRST, sound), "b": (SECOND, again)}) == {}
    assert found({"a": (FIRST, sound), "b": (FIRST, again[: int(0.97 * len(sound))])}) == {}
    assert found({"a": ("", sound), "b": ("…", again)}) == {}, "no words are no agreement"
    shortest = min(len(one) for one in sentences)
    assert len(sentences) == 8
    for one, other in itertools.combinations(sentences, 2):
        assert found({"a": (FIRST, one[:shortest]), "b": (FIRST, other[:shortest])}) == {}


def test_all_duplicates_name_one_kept_clip(sentences) -> None:
    sound = sentences[0]
    copies = [copy(sound, *format_)[: len(sound)] for format_ in COPIES]
    sounds = {f"{index}": (FIRST, one) for index, one in enumerate([*copies, copies[0].copy(), sound])} | {"z": (SECOND, sentences[1])}
    assert found(sounds) == dict.fromkeys("12345", "0")


def test_only_clips_that_may_be_duplicates_are_read(sentences) -> None:
    read = []
    clips = [
        DuplicateCandidate("a", FIRST, 1000),
        DuplicateCandidate("b", FIRST, 2000),
        DuplicateCandidate("c", SECOND, 1001),
        DuplicateCandidate("d", "Other.", 3000),
        DuplicateCandidate("e", "More.", 3000),
    ]

    def samples(name: str) -> np.ndarray:
        read.append(name)
        return sentences[ord(name) - ord("a")]

    assert find_duplicates(clips, samples) == {}
    assert sorted(read) == ["d", "e"]


def test_only_words_are_compared() -> None:
    assert normalise_text("  It’s — “Two” o'clock!") == normalise_text("it's two o’clock")
    assert normalise_text("CAFÉ") == normalise_text("cafe\u0301")
    assert normalise_text("是的。") == "是 的"


def test_a_spectrum_ignores_the_gain_and_survives_silence(sentences) -> None:
    assert np.allclose(compute_spectrum(sentences[0]), compute_spectrum(0.1 * sentences[0]), atol=1e-3)
    assert np.isfinite(compute_spectrum(np.zeros(10, np.float32))).all()
