"""Speech of known speakers for the benchmarks of voices, and what may be added to it.

The prompts of five people in five languages are those of Debian's packages asterisk-core-sounds-{en,es,fr,it,ru}-g722, with their texts in
asterisk-core-sounds-{en,es,fr,it,ru}; the synthetic voices are flite's.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import Samples

RATE = 16_000
SOUNDS, TEXTS = Path("/usr/share/asterisk/sounds"), Path("/usr/share/doc")
FOLDERS = {
    "en": "en_US_f_Allison",
    "es": "es_MX_f_Allison",
    "fr": "fr_CA_f_June",
    "it": "it_IT_m_Carlo",
    "ru": "ru_RU_f_IvrvoiceRU",
}
FLITE = ("awb", "rms", "slt")
LEVEL = 0.06
"""RMS of the loud frames of a prompt."""
LONGEST_TEXT = 110
INSTALL = "apt-get install asterisk-core-sounds-{en,es,fr,it,ru}{,-g722} flite"


def is_missing() -> bool:
    """Return whether one of the packages is not installed."""
    return not all((SOUNDS / folder).is_dir() for folder in FOLDERS.values()) or shutil.which("flite") is None


@functools.cache
def read_voice(voice: str, shortest: float = 1.2, longest: float = 9.0) -> list[Samples]:
    """The clips of a language's prompts or a voice of flite with so many seconds, [n] at 16 kHz, in an order of their names' digests."""
    waves = _speak_sentences(voice) if voice in FLITE else [_decode(SOUNDS / FOLDERS[voice] / f"{name}.g722") for name in list_names(voice)]
    return [set_level(wave) for wave in waves if shortest <= len(wave) / RATE <= longest]


def list_names(language: str) -> list[str]:
    """Names of the prompts with spoken words."""
    lines = _read_texts(language)
    names = [name for name, text in lines if text[0] not in "[(" and (SOUNDS / FOLDERS[language] / f"{name}.g722").is_file()]
    return sorted(names, key=_digest)


def _read_texts(language: str) -> list[tuple[str, str]]:
    packed = (TEXTS / f"asterisk-core-sounds-{language}" / f"core-sounds-{language}.txt.gz").read_bytes()
    lines = [line.partition(":") for line in gzip.decompress(packed).decode("utf-8", "replace").split("\n")]
    found = [(name.strip(), text.strip(" “”\r")) for name, _, text in lines if not name.startswith(";")]
    return [(name, text) for name, text in found if name and text]


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _decode(path: Path) -> Samples:
    import av

    with av.open(str(path), format="g722") as container:
        frames = [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
    return np.concatenate(frames).astype(np.float32) / 32768


def _speak_sentences(voice: str) -> list[Samples]:
    """English prompts, spoken by flite."""
    texts = sorted({text for _, text in _read_texts("en") if 20 < len(text) < LONGEST_TEXT and text[0] not in "[("}, key=_digest)
    waves = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spoken.wav"
        for text in texts[:60]:
            subprocess.run(["flite", "-voice", voice, "-t", text, "-o", str(path)], check=True)
            wave, rate = soundfile.read(path, dtype="float32")
            waves.append(np.asarray(soxr.resample(wave, rate, RATE), np.float32))
    return waves


def set_level(wave: Samples) -> Samples:
    """The samples [n] with loud frames at `LEVEL`."""
    power = np.square(wave[: len(wave) // 320 * 320].reshape(-1, 320), dtype=np.float64).mean(axis=1)
    return wave * np.float32(LEVEL / np.sqrt(power[power > power.max() / 1000].mean()))


def draw_speech(pool: Sequence[Samples], length: int, chance: np.random.Generator) -> Samples:
    """[length] of random clips of the pool, one after another."""
    pieces: list[Samples] = []
    while sum(map(len, pieces)) < length:
        pieces.append(pool[chance.integers(len(pool))])
    return np.concatenate(pieces)[:length]


def make_second_voice(length: int, pool: Sequence[Samples], below: float, part: float, chance: np.random.Generator) -> Samples:
    """[length] speech of the pool, `below` dB under `LEVEL`, in one stretch that is `part` of the length, the rest silent."""
    size = int(length * part)
    start = int(chance.integers(0, length - size + 1))
    second = np.zeros(length, np.float32)
    second[start : start + size] = draw_speech(pool, size, chance) * np.float32(10 ** (-below / 20))
    return second


def make_noise(length: int, below: float, chance: np.random.Generator) -> Samples:
    """[length] white noise, `below` dB under `LEVEL`."""
    return np.float32(LEVEL * 10 ** (-below / 20)) * chance.standard_normal(length, np.float32)


def make_music(length: int, below: float, chance: np.random.Generator) -> Samples:
    """[length] chords of three notes with four overtones, a chord a second, `below` dB under `LEVEL`."""
    time, wave = np.arange(length) / RATE, np.zeros(length)
    for start in range(0, length, RATE):
        root, part = 110 * 2 ** (chance.integers(0, 24) / 12), slice(start, start + RATE)
        for ratio in (1, 5 / 4, 3 / 2):
            wave[part] += sum(np.sin(2 * np.pi * root * ratio * overtone * time[part]) / overtone for overtone in range(1, 6))
        wave[part] *= np.exp(-2 * (time[part] - start / RATE))
    return (wave * LEVEL * 10 ** (-below / 20) / np.sqrt(np.mean(wave**2))).astype(np.float32)


def add_echo(wave: Samples, seconds: float, below: float, chance: np.random.Generator) -> Samples:
    """The samples [n] in a room that reverberates so many seconds, its echo in all `below` dB under the direct sound."""
    size = int(seconds * RATE)
    tail: NDArray[np.float64] = chance.standard_normal(size) * 10 ** (-3 * np.arange(size) / size)
    tail *= 10 ** (-below / 20) / np.sqrt(np.sum(tail**2))
    tail[0] += 1
    length = len(wave) + size
    return np.fft.irfft(np.fft.rfft(wave, length) * np.fft.rfft(tail, length), length)[: len(wave)].astype(np.float32)


def cut_band(wave: Samples, low: float, high: float) -> Samples:
    """The samples [n] with no sound below `low` and above `high` Hz."""
    spectrum = np.fft.rfft(wave)
    frequencies = np.fft.rfftfreq(len(wave), 1 / RATE)
    spectrum[(frequencies < low) | (frequencies > high)] = 0
    return np.fft.irfft(spectrum, len(wave)).astype(np.float32)
