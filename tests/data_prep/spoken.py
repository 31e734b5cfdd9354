"""Long recordings of which every phone's time is known: sentences by flite's voices, with pauses between them, on the noise of a room."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.waveform import Samples

RATE = 16_000
VOICES = ("slt", "rms", "awb")
PAUSE = "pau"
needs_flite = pytest.mark.skipif(shutil.which("flite") is None, reason="flite is not installed: apt-get install flite")

SUBJECTS = (
    "The harbour master",
    "A very old letter",
    "Nobody in the village",
    "My younger brother",
    "The seventh carriage",
    "That quiet dog",
)
VERBS = (
    "remembers",
    "was looking for",
    "could never explain",
    "keeps talking about",
    "had already forgotten",
    "still wants",
)
OBJECTS = (
    "the broken clock",
    "six boxes of cheese",
    "a song without words",
    "the road to the north",
    "her first photograph",
    "half a loaf of bread",
)
ENDS = (
    "before the rain.",
    "and then it stopped.",
    "at the end of the week.",
    ", doesn't it?",
    "with great patience.",
    "since last winter.",
)


@dataclass(frozen=True)
class Sentence:
    """One sentence in a recording; times in seconds."""

    text: str
    phones: tuple[tuple[float, float], ...]
    """(start, end) of each sound that is speech."""

    @property
    def start(self) -> float:
        return self.phones[0][0]

    @property
    def end(self) -> float:
        return self.phones[-1][1]


def sentences(count: int, chance: random.Random) -> list[str]:
    """Different ones, in an order that the seed decides."""
    every = [f"{s} {v} {o} {e}".replace(" ,", ",") for s in SUBJECTS for v in VERBS for o in OBJECTS for e in ENDS]
    return chance.sample(every, count)


def record(path: Path, voice: str, count: int, seed: int, noise_db: float = -66.0) -> list[Sentence]:
    """Write a mono recording of `count` sentences and return where each phone of it lies."""
    chance, noise = random.Random(seed), np.random.default_rng(seed)
    pieces, said, position = [np.zeros(RATE // 2, np.float32)], [], RATE // 2
    for text in sentences(count, chance):
        wave, phones = _speak(text, voice, path.with_suffix(".part.wav"))
        offset = position / RATE
        said.append(Sentence(text, tuple((offset + start, offset + end) for start, end in phones)))
        pause = np.zeros(int(chance.uniform(0.0, 1.5) * RATE), np.float32)  # flite adds some tenths of a second at both ends
        pieces += [wave * chance.uniform(0.5, 1.0), pause]
        position += len(wave) + len(pause)
    whole = np.concatenate(pieces)
    room = 10 ** (noise_db / 20) * noise.standard_normal(len(whole), np.float32)
    soundfile.write(path, whole + room, RATE, subtype="PCM_16")
    return said


def _speak(text: str, voice: str, path: Path) -> tuple[Samples, list[tuple[float, float]]]:
    """The waveform of a sentence, and its phones as flite prints them: `name:end` each."""
    done = subprocess.run(["flite", "-voice", voice, "-psdur", "-t", text, "-o", path], capture_output=True, text=True, check=True)
    wave, rate = soundfile.read(path, dtype="float32")
    path.unlink()
    assert rate == RATE
    ends = [(name, float(end)) for name, end in (item.split(":") for item in done.stdout.split())]
    spans = zip([0.0, *(end for _, end in ends)], ends, strict=False)
    return wave, [(start, end) for start, (name, end) in spans if name != PAUSE]
