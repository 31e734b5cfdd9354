"""Duplicates that are found, and sentences of one voice with another word that are kept although most of their sound is equal.

The voices are those of flite, and of Debian's telephone prompts: asterisk-core-sounds-en-wav, -es-wav, -fr-wav, -it-wav and -ru-wav.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import soundfile
import soxr

from overtone.data_prep.audio.waveform import MASTER_RATE, Samples
from overtone.data_prep.clips import duplicates
from overtone.data_prep.clips.duplicates import DuplicateCandidate
from overtone.data_prep.clips.fingerprint_matching import FingerprintedClip
from overtone.data_prep.clips.fingerprints import compute_fingerprint
from tests.data_prep.telephone_prompts import FIVE_VOICES, HALVES, RATE, has_prompts, list_prompts
from workshop.benchmarks import _table

VOICES = ("kal", "awb", "rms", "slt")
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
TEMPLATES = {
    "This is sentence number {} of twenty.": NUMBERS,
    "The code is four {} seven two.": NUMBERS[:9],
    "Please give the book to {} before the evening.": ("Anna", "Emma", "Peter", "Hannah", "Simon", "Martin", "Laura", "Robert"),
    "The letter {} is the next one in the word.": tuple("ABCDEGKMNPST"),
    "The answer is {}.": (*NUMBERS, "yes", "no", "red", "blue"),
    "I saw a {} in the garden.": ("cat", "bat", "hat", "rat", "mat", "cap", "cut"),
    "He {} come to the meeting today.": ("can", "can't", "did", "didn't", "will", "won't"),
}
SHORT = ("digits/", "letters/", "phonetic/")
CODED = {"MP3": ("MP3", "MPEG_LAYER_III", 16_000), "Opus": ("OGG", "OPUS", 24_000), "Vorbis": ("OGG", "VORBIS", 24_000)}
NOTE = (
    "Every clip is in a recording of its own, with its own noise 70 dB below full scale. Sentences of a voice differ in one word; the "
    "prompts are single numbers and letters. The texts of a sentence and its copy differ in one word, too: the last columns are the copies "
    "that are found nevertheless. Loud noise changes the waveform; such copies are found if the texts are equal."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    rows = []
    for name, groups in read_voices(flags.quick).items():
        different = [make_clips(group) for group in groups]
        with mock.patch.object(duplicates, "agrees_throughout", return_value=True):
            trusting = sum(count_copies(*clips) for clips in different)
        checked = sum(count_copies(*clips) for clips in different)
        sounds = [sound for group in groups for _, sound in group if len(sound) > MASTER_RATE][:: 2 if flags.quick else 4]
        found = [
            sum(
                count_copies(*make_clips([("here one word is wrong", sound), ("here one word is right", change(sound))]))
                for sound in sounds
            )
            / len(sounds)
            for change in DAMAGES.values()
        ]
        rows.append([name, sum(map(len, groups)), trusting, checked, len(sounds), *(f"{share:.0%}" for share in found)])
    _table.publish("copies", flags, COLUMNS, rows, NOTE)


def read_voices(quick: bool) -> dict[str, list[list[tuple[str, Samples]]]]:
    """Voice → groups of sentences that differ in a word, each a text and samples [n] at `MASTER_RATE`."""
    templates = list(TEMPLATES.items())[: 1 if quick else None]
    found = {
        f"flite {voice}": [[(text, speak(voice, text)) for text in map(form.format, words)] for form, words in templates]
        for voice in VOICES[: 2 if quick else None]
    }
    for language in [] if quick else filter(lambda one: has_prompts(one, "wav"), FIVE_VOICES):
        found[f"prompts {language}"] = [read_numbers_and_letters(language)]
    return found


def speak(voice: str, text: str) -> Samples:
    """[n] at `MASTER_RATE`, by flite."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        subprocess.run(["flite", "-voice", voice, "-t", text, "-o", file.name], check=True)
        samples, rate = soundfile.read(file.name, dtype="float32")
    return soxr.resample(samples, rate, MASTER_RATE)


def read_numbers_and_letters(language: str) -> list[tuple[str, Samples]]:
    """Text and samples [n] at `MASTER_RATE` of prompts that are a number, a letter or its name."""
    prompts = [prompt for half in HALVES for prompt in list_prompts(language, half, "wav") if prompt.name.startswith(SHORT)]
    return [(prompt.text, soxr.resample(prompt.samples, RATE, MASTER_RATE)) for prompt in prompts]


def make_clips(group: Sequence[tuple[str, Samples]]) -> tuple[list[DuplicateCandidate], dict[str, Samples]]:
    """Each text and sound as a clip, in a recording of its own, and the sounds of the clips."""
    clips, sounds = [], {}
    for number, (text, sound) in enumerate(group):
        chance, name = np.random.default_rng(number), str(number)
        before = int(chance.integers(MASTER_RATE // 10, MASTER_RATE // 2))
        whole = np.concatenate([np.zeros(before), sound, np.zeros(MASTER_RATE // 4)])
        whole = (whole + chance.normal(0, 10 ** (-70 / 20), len(whole))).astype(np.float32)
        start, stop = before - MASTER_RATE // 20, before + len(sound) + MASTER_RATE // 20
        sounds[name] = whole[start:stop]
        clips.append(DuplicateCandidate(FingerprintedClip(name, name, start, stop, compute_fingerprint(whole, start, stop)), text, 0.0))
    return clips, sounds


def count_copies(clips: list[DuplicateCandidate], sounds: dict[str, Samples]) -> int:
    """Clips that are called copies of others."""
    return len(duplicates.find_duplicates(clips, sounds.__getitem__).kept)


def code(sound: Samples, form: str, subtype: str, rate: int) -> Samples:
    """The sound after a lossy format."""
    file = io.BytesIO()
    soundfile.write(file, np.clip(soxr.resample(sound, MASTER_RATE, rate), -1, 1), rate, format=form, subtype=subtype)
    file.seek(0)
    samples, coded_rate = soundfile.read(file, dtype="float32")
    return soxr.resample(samples, coded_rate, MASTER_RATE)


def add_noise(sound: Samples, ratio: float) -> Samples:
    """White noise `ratio` dB below the sound."""
    level = float(np.sqrt(np.mean(np.square(sound)))) * 10 ** (-ratio / 20)
    return sound + np.random.default_rng(0).normal(0, level, len(sound)).astype(np.float32)


def clip_peaks(sound: Samples) -> Samples:
    """The sound amplified by 12 dB and cut off."""
    peak = float(np.abs(sound).max())
    return np.clip(4 * sound, -peak, peak)


DAMAGES: dict[str, Callable[[Samples], Samples]] = {
    **{name: lambda sound, form=form: code(sound, *form) for name, form in CODED.items()},
    "μ-law at 8 kHz": lambda sound: code(sound, "WAV", "ULAW", 8_000),
    "26 dB quieter, 11 kHz": lambda sound: code(0.05 * sound, "WAV", "PCM_16", 11_025),
    "5 ms later, 80 ms shorter at each end": lambda sound: np.concatenate([np.zeros(120, np.float32), sound])[1920:-1920],
    "noise 20 dB below": lambda sound: add_noise(sound, 20),
    "noise 10 dB below": lambda sound: add_noise(sound, 10),
    "peaks clipped by 12 dB": clip_peaks,
}
COLUMNS = ("voice", "sentences", "called copies, by fingerprints alone", "called copies", "sentences with copies", *DAMAGES)


if __name__ == "__main__":
    main()
