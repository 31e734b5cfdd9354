"""The synthetic voices of the corpus and how to synthesize them: Debian packages flite, festival with festvox-kdlpc16k, espeak-ng."""

from __future__ import annotations

import io
import struct
import subprocess
from dataclasses import dataclass
from typing import Literal

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from overtone.finetune.errors import UserError

Wave = NDArray[np.float32]
"""[time], in [-1, 1]."""

RATE = 24_000
"""Sample rate of all audio of the corpus, in Hz; flite and festival give 16 kHz, espeak-ng 22.05 kHz."""
PEAK = 10 ** (-6 / 20)
SILENCE = 10 ** (-46 / 20)
"""Below this share of the peak, the edges of a sentence are silence."""
EDGE_S = 0.04
"""Seconds of the synthesizer's own silence that are kept on either side."""
ESPEAK_WORDS_PER_MINUTE = 165


@dataclass(frozen=True)
class SyntheticVoice:
    """A speaker of the corpus."""

    name: str
    engine: Literal["flite", "festival", "espeak-ng"]
    engine_voice: str
    sentences: int
    """Number of training sentences."""


NEW_VOICE = SyntheticVoice("rms", "flite", "rms", 700)
"""The base is trained only on resampled clips of it (`make_corpus.FAR_SIZES`); the codec and Whisper are trained on it. Of the natural
voices, it is the one whose accent the others share."""
KNOWN_VOICES = (
    SyntheticVoice("slt", "flite", "slt", 2400),
    SyntheticVoice("awb", "flite", "awb", 2400),
    SyntheticVoice("kal16", "flite", "kal16", 2400),
    SyntheticVoice("ked", "festival", "voice_ked_diphone", 1000),
    SyntheticVoice("espeak", "espeak-ng", "en-us", 1000),
    SyntheticVoice("espeak_f3", "espeak-ng", "en-us+f3", 800),
)
VOICES = (*KNOWN_VOICES, NEW_VOICE)
PACKAGES = {"flite": "flite", "festival": "festival festvox-kdlpc16k", "espeak-ng": "espeak-ng"}


def speak(voice: SyntheticVoice, text: str, speed: float = 1.0) -> Wave:
    """One sentence at `RATE`, trimmed to its audible part with a little silence around it, peak at -6 dB of full scale.

    `speed`: 1.1 is a tenth faster, at the same pitch. Raises `UserError` if the synthesizer is not installed.
    """
    wave, rate = soundfile.read(io.BytesIO(_synthesize(voice, text, speed)), dtype="float32")
    audible = np.flatnonzero(np.abs(wave) > SILENCE * np.abs(wave).max())
    edge = round(EDGE_S * rate)
    wave = wave[max(0, audible[0] - edge) : audible[-1] + edge]
    wave = soxr.resample(wave, rate, RATE, quality="VHQ")
    return wave * np.float32(PEAK / np.abs(wave).max())


def make_silence(seconds: float) -> Wave:
    """Zeros at `RATE`."""
    return np.zeros(round(seconds * RATE), np.float32)


def list_phones(word: str) -> list[str]:
    """The phones of a word in flite's American English."""
    found = _run("flite", ["flite", "-ps", "-t", word, "-o", "none"]).decode().split()
    return [phone for phone in found if phone != "pau"]


def _synthesize(voice: SyntheticVoice, text: str, speed: float) -> bytes:
    """A sentence as a WAV file."""
    match voice.engine:
        case "flite":
            stretch = f"duration_stretch={1 / speed:.3f}"
            return _run("flite", ["flite", "-voice", voice.engine_voice, "--setf", stretch, "-t", text, "-o", "/dev/stdout"])
        case "festival":
            stretch = f"(Parameter.set 'Duration_Stretch {1 / speed:.3f})"
            return _fix_sizes(_run("festival", ["text2wave", "-eval", f"({voice.engine_voice})", "-eval", stretch], text.encode()))
        case "espeak-ng":
            pace = str(round(ESPEAK_WORDS_PER_MINUTE * speed))
            return _fix_sizes(_run("espeak-ng", ["espeak-ng", "-v", voice.engine_voice, "-s", pace, "--stdout", text]))


def _fix_sizes(wav: bytes) -> bytes:
    """Correct the sizes in the 44-byte header: two of the synthesizers write to a pipe before they know the length."""
    return wav[:4] + struct.pack("<I", len(wav) - 8) + wav[8:40] + struct.pack("<I", len(wav) - 44) + wav[44:]


def _run(engine: str, command: list[str], text: bytes = b"") -> bytes:
    try:
        return subprocess.run(command, input=text, capture_output=True, check=True).stdout
    except FileNotFoundError:
        raise UserError(f"the {command[0]} command is missing; install it (Debian: apt-get install {PACKAGES[engine]})") from None
    except subprocess.CalledProcessError as error:
        raise UserError(f"{' '.join(command)}: {error.stderr.decode(errors='replace').strip()}") from error
