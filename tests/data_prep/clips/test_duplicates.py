"""Duplicates: copies in other formats, at other levels, shifted or cut differently are found, other sounds are not; the best is kept.

Sentences of one synthetic voice that differ in a word are no duplicates, and copies with a wrong word in one of the texts are.
"""

from __future__ import annotations

import io
import itertools
import subprocess
import tempfile
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import soxr

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.clips.duplicates import DuplicateCandidate, FoundDuplicates, find_duplicates, normalise_text
from overtone.data_prep.clips.fingerprint_matching import FingerprintedClip
from overtone.data_prep.clips.fingerprints import compute_fingerprint
from tests.data_prep.spoken import needs_flite

SOUNDS: dict[str, np.ndarray] = {}
"""Of the clips that `candidate` made last."""
FIRST = "The night train to the north leaves from platform seven."


@pytest.fixture(scope="module")
def sentences(railway, said) -> list[np.ndarray]:
    return [railway.samples[int(one["start"] * MASTER_RATE) : int(one["end"] * MASTER_RATE)] for one in said]


def candidate(name: str, sound: np.ndarray, text: str = "", quality: float = 0.0, start: int = 0) -> DuplicateCandidate:
    """A clip that is all of its recording after `start` samples."""
    padded = np.concatenate([np.zeros(start, np.float32), sound]).astype(np.float32)
    words = compute_fingerprint(padded, start, len(padded))
    SOUNDS[name] = padded[start:]
    return DuplicateCandidate(FingerprintedClip(name, f"recording {name}", start, len(padded), words), text, quality)


def find(clips: list[DuplicateCandidate], wanted: frozenset[str] = frozenset()) -> FoundDuplicates:
    return find_duplicates(clips, SOUNDS.__getitem__, wanted)


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
    assert find(made).kept == {"a": "b"}


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
    found = find(clips)
    assert found.kept == dict.fromkeys("abcd", "e")
    assert found.takes == dict.fromkeys("abcde", "a")
    assert find(clips, wanted=frozenset("a")).kept == dict.fromkeys("bcde", "a"), "one that a person keeps wins"


def test_copies_that_were_cut_at_other_pauses_are_found(railway) -> None:
    """Half of the second clip is in the first one: it is kept. All of the third is: it is a duplicate."""
    sound, second = railway.samples[: 20 * MASTER_RATE], MASTER_RATE

    def cut(name: str, recording: str, start: float, stop: float, quality: float, text: str = "") -> DuplicateCandidate:
        begin, end = round(start * second), round(stop * second)
        SOUNDS[name] = sound[begin:end]
        return DuplicateCandidate(FingerprintedClip(name, recording, begin, end, compute_fingerprint(sound, begin, end)), text, quality)

    found = find([cut("a", "best", 0, 8, 1.0), cut("b", "copy", 5, 12, 0.0), cut("c", "copy", 2, 5, 0.0)])
    assert found.kept == {"c": "a"}
    assert found.takes == dict.fromkeys("abc", "a")
    texts = "one two three four five six", "four five six seven eight", "three four"
    places = ("best", 0, 9, 1.0), ("copy", 4, 12, 0.0), ("copy", 2, 4, 0.0)
    found = find([cut(name, *place, text) for name, place, text in zip("abc", places, texts, strict=True)])
    assert found.kept == {"c": "a"}, "most of the second one is in the first, but two of its words are not"


def test_other_sentences_are_no_duplicates_even_with_one_text(sentences) -> None:
    assert len(sentences) == 8
    for one, other in itertools.combinations(sentences, 2):
        shortest = min(len(one), len(other))
        found = find([candidate("a", one[:shortest], FIRST), candidate("b", other[:shortest], FIRST)])
        assert not found.kept and not found.takes


def test_a_short_clip_without_equal_words_is_found_by_its_text(sentences) -> None:
    """A second of speech with loud noise has too few undamaged words."""
    sound = sentences[0][:MASTER_RATE]
    noisy = sound + 0.5 * sound.std() * np.random.default_rng(1).standard_normal(len(sound))
    assert find([candidate("a", sound, "Now.", 1.0), candidate("b", noisy, "now")]).kept == {"b": "a"}


TEMPLATES = {
    "This is sentence number {} of ten.": ("one", "two", "three", "four", "five"),
    "I saw a {} in the garden.": ("cat", "bat", "hat", "mat"),
    "The letter {} is the next one in the word.": ("B", "D", "M", "N"),
    "The answer is {}.": ("yes", "no", "red"),
    "He {} come to the meeting today.": ("can", "can't", "will"),
}


def speak(voice: str, text: str, number: int) -> np.ndarray:
    """[n] the sentence by flite, in a recording of its own with the noise of a quiet room."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        subprocess.run(["flite", "-voice", voice, "-t", text, "-o", file.name], check=True)
        spoken, rate = soundfile.read(file.name, dtype="float32")
    sound = soxr.resample(spoken, rate, MASTER_RATE)
    room = np.random.default_rng(number).normal(0, 2e-4, len(sound) + number * 1000)
    return (np.concatenate([np.zeros(number * 1000), sound]) + room).astype(np.float32)


@needs_flite
def test_sentences_of_a_synthetic_voice_that_differ_in_one_word_stay() -> None:
    """Without the comparison of their waveforms, the fingerprints of many are those of copies."""
    for template, words in TEMPLATES.items():
        texts = [template.format(word) for word in words]
        clips = [candidate(str(number), speak("slt", text, number), text) for number, text in enumerate(texts)]
        assert not find(clips).kept, template
        if template.startswith("This"):
            one_text = [replace(clip, text=texts[0]) for clip in clips]
            assert find(one_text).kept, "the trap is one"


@needs_flite
@pytest.mark.parametrize("format_", COPIES, ids=lambda one: one[1])
def test_a_copy_with_a_wrong_word_in_its_text_is_a_duplicate(format_) -> None:
    """At half the level, in another format and rate, 5 ms later and without 80 ms at each end."""
    sound = speak("slt", "The train to the north stops at every station.", 3)
    made = copy(sound, *format_)[80 * MASTER_RATE // 1000 : -80 * MASTER_RATE // 1000]
    texts = "The train to the north stops at every station.", "The train to the south stops at every station."
    assert find([candidate("a", sound, texts[0], 1.0), candidate("b", made, texts[1], start=120)]).kept == {"b": "a"}


def test_only_words_are_compared() -> None:
    assert normalise_text("  It’s — “Two” o'clock!") == normalise_text("it's two o’clock")
    assert normalise_text("CAFÉ") == normalise_text("cafe\u0301")
    assert normalise_text("是的。") == "是 的"
