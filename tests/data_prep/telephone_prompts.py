"""Recordings of professional speakers with known texts and joints, from Debian's telephone prompts.

`apt-get install asterisk-core-sounds-en-g722 asterisk-core-sounds-fr-g722` (the texts are in asterisk-core-sounds-en and -fr). Thresholds
are chosen on the first half of the prompts and reported on the second. Three more voices are in asterisk-core-sounds-es-g722, -it-g722 and
-ru-g722; packages that end in -wav have the same prompts at 8 kHz.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from overtone.data_prep.audio.waveform import Samples

RATE = 16_000
SOUNDS, TEXTS = Path("/usr/share/asterisk/sounds"), Path("/usr/share/doc")
VOICES = {"en": "en_US_f_Allison", "fr": "fr_CA_f_June"}
FIVE_VOICES = VOICES | {"es": "es_MX_f_Allison", "it": "it_IT_m_Carlo", "ru": "ru_RU_f_IvrvoiceRU"}
BYTES_PER_SECOND = {"g722": 8000, "wav": 16_000}
HALVES = ("tuned", "reported")
needs_prompts = pytest.mark.skipif(
    not all((SOUNDS / voice).is_dir() for voice in VOICES.values()),
    reason="the telephone prompts are not installed: apt-get install asterisk-core-sounds-en-g722 asterisk-core-sounds-fr-g722",
)


@dataclass(frozen=True)
class Prompt:
    """One prompt of a language."""

    language: str
    name: str
    text: str
    form: str = "g722"

    @property
    def path(self) -> Path:
        return SOUNDS / FIVE_VOICES[self.language] / f"{self.name}.{self.form}"

    @property
    def seconds(self) -> float:
        return self.path.stat().st_size / BYTES_PER_SECOND[self.form]

    @functools.cached_property
    def samples(self) -> Samples:
        """[n] at 16 kHz."""
        if self.form == "wav":
            narrow, rate = soundfile.read(self.path, dtype="float32")
            return soxr.resample(narrow, rate, RATE)
        import av

        with av.open(str(self.path), format="g722") as container:
            frames = [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
        return np.concatenate(frames).astype(np.float32) / 32768


@dataclass(frozen=True)
class Cue:
    """A prompt in a recording; times in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class PromptRecording:
    """Prompts with pauses between them: samples at 16 kHz, and where each text is."""

    samples: Samples
    cues: tuple[Cue, ...]


def has_prompts(language: str, form: str = "g722") -> bool:
    """Whether the package of a voice is installed, with its texts."""
    return any((SOUNDS / FIVE_VOICES[language]).glob(f"*.{form}")) and (TEXTS / f"asterisk-core-sounds-{language}").is_dir()


def list_prompts(language: str, half: str, form: str = "g722") -> list[Prompt]:
    """The spoken prompts of at least 0.6 s in one half, in an order of their names' digests."""
    lines = gzip.decompress((TEXTS / f"asterisk-core-sounds-{language}" / f"core-sounds-{language}.txt.gz").read_bytes()).decode()
    found = []
    for line in lines.splitlines():
        name, colon, text = line.partition(":")
        prompt = Prompt(language, name.strip(), text.strip(" “”"), form)
        if colon and not line.startswith(";") and prompt.text and prompt.text[0] not in "[(" and prompt.path.is_file():
            found.append(prompt)
    long_enough = [one for one in found if one.seconds >= 0.6]
    order = sorted(long_enough, key=_digest)
    return [one for one in order if int(_digest(one)[-1], 16) % 2 == HALVES.index(half)]


def join_prompts(prompts: list[Prompt], seed: int, pauses: tuple[float, float] = (0.3, 1.4)) -> PromptRecording:
    """The prompts one after another on the noise of a quiet room, with pauses of random length in seconds between them."""
    chance = random.Random(seed)
    pieces, cues, position = [np.zeros(RATE // 2, np.float32)], [], RATE // 2
    for prompt in prompts:
        cues.append(Cue(position / RATE, (position + len(prompt.samples)) / RATE, prompt.text))
        pause = np.zeros(int(chance.uniform(*pauses) * RATE), np.float32)
        pieces += [prompt.samples, pause]
        position += len(prompt.samples) + len(pause)
    whole = np.concatenate(pieces)
    noise = np.random.default_rng(seed).standard_normal(len(whole)).astype(np.float32)
    return PromptRecording(np.clip(whole + 10 ** (-70 / 20) * noise, -1, 1), tuple(cues))


def format_subtitles(cues: tuple[Cue, ...], late: float = 0.0) -> str:
    """SubRip text; `late`: seconds added to all times."""
    return "\n".join(
        f"{number}\n{_format_time(cue.start + late)} --> {_format_time(cue.end + late)}\n{cue.text}\n" for number, cue in enumerate(cues, 1)
    )


def _format_time(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    return f"{milliseconds // 3_600_000:02d}:{milliseconds // 60_000 % 60:02d}:{milliseconds // 1000 % 60:02d},{milliseconds % 1000:03d}"


def _digest(prompt: Prompt) -> str:
    return hashlib.sha256(f"{prompt.language}/{prompt.name}".encode()).hexdigest()
