"""Rebuild the embedded sample: long recordings of two synthetic speakers, with exact transcripts.

    python -m workshop.demo_models.corpus.make_sample_recordings FOLDER

Needs the `flite` command (Debian package `flite`, version 2.2) in addition to the packages for training. You need not run this: its output
is in the repository. The script is here so that the sample can be checked and changed.

Each recording is a sequence of sentences of one flite voice with pauses of 0.35 to 1.2 s, on faint room noise, in a common file format:
lossless or lossy, mono or stereo, at four sample rates. `<stem>.transcript.json` beside it is a list of `{"start": s, "end": s, "text":
...}`; every time is a whole number of milliseconds and is valid in the decoded file.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line

Wave = NDArray[np.float32]
"""Samples in [-1, 1]; [time] or [time, channel]."""

FLITE_HZ = 16_000
SAMPLES_PER_MS = FLITE_HZ // 1000
PAUSE_S = (0.35, 1.2)
EDGE_S = 0.6
"""Room noise before the first sentence and after the last."""
SILENCE = 10 ** (-46 / 20)
"""Below this share of a sentence's peak, its edges are silence. Flite pads every sentence with about 0.2 s."""
PEAK = 10 ** (-6 / 20)
ROOM = 10 ** (-66 / 20)
"""RMS of the room noise, relative to full scale: a quiet room."""


@dataclass(frozen=True)
class SampleRecording:
    """One file of the sample."""

    path: str
    """`<voice>/<stem>.<format>`; the folder is the speaker and the flite voice."""
    rate: int
    """Hz."""
    channels: int
    sentences: tuple[str, ...]


RECORDINGS = (
    SampleRecording(
        "slt/harbour.flac",
        44_100,
        2,
        (
            "The harbour wakes up slowly, long before the first ferry leaves.",
            "Two gulls argue about a piece of bread on the wooden pier.",
            "Have you ever counted the boats that come home at night?",
            "My grandmother always knew the weather by the smell of the rope.",
            "Nobody believed her, and yet she was hardly ever wrong.",
            "Today the water is green and quiet, like glass in an old window.",
            "I will wait here until the lamp on the far wall is lit.",
            "Tell the captain that I brought the maps and a basket of oranges.",
            "We sail at dawn, whatever the radio says!",
        ),
    ),
    SampleRecording(
        "slt/kitchen.mp3",
        22_050,
        1,
        (
            "First, warm the butter in a small pan until it smells of nuts.",
            "Then add the onions, and be patient with them.",
            "How much salt is enough? Less than you think, and later than you think.",
            "A good soup needs time, a lid, and somebody who does not hurry.",
            "Chop the parsley very finely and keep a little for the end.",
            "When the bread is brown on both sides, call everyone to the table.",
            "Please leave the last bowl for the neighbour across the street.",
            "She brought us apples all through the autumn.",
            "Wash the pots while the coffee is still too hot to drink.",
        ),
    ),
    SampleRecording(
        "rms/railway.ogg",
        48_000,
        1,
        (
            "The night train to the north leaves from platform seven.",
            "It carries letters, flowers, and a few people who cannot sleep.",
            "Somewhere after midnight the hills begin, and the windows turn black.",
            "Would you like some tea before we reach the bridge?",
            "The conductor has worked on this line for thirty one years.",
            "He says that every station has a sound of its own.",
            "By morning there is snow on the roofs and steam above the river.",
            "A child in a yellow coat waves at us from the crossing.",
        ),
    ),
    SampleRecording(
        "rms/workshop.wav",
        16_000,
        1,
        (
            "A sharp chisel is safer than a dull one.",
            "Measure the board twice, because the saw does not forgive.",
            "This table was made from an oak that fell in a storm.",
            "Can you hold the lamp a little higher, please?",
            "The glue needs about twenty minutes in a warm room.",
            "Meanwhile we sweep the floor and put the planes back on the shelf.",
            "I learned the trade from my uncle, who spoke very little.",
            "When he was pleased, he simply nodded and lit his pipe.",
            "These hinges are brass, and they will last longer than we do.",
        ),
    ),
)


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        raise UserError("usage: python -m workshop.demo_models.corpus.make_sample_recordings FOLDER")
    for recording in RECORDINGS:
        wave, transcript = synthesize_recording(recording)
        path = Path(argv[0]) / recording.path
        files.write_bytes(path, encode_recording(recording, wave))
        files.write_text(path.with_suffix(".transcript.json"), json.dumps(transcript, indent=1) + "\n")
        print_line(f"{path}: {len(wave) / FLITE_HZ:.1f} s, {len(transcript)} sentences, {path.stat().st_size:,} bytes")
    return 0


def synthesize_recording(recording: SampleRecording) -> tuple[Wave, list[dict[str, float | str]]]:
    """The recording as mono at `FLITE_HZ` without room noise, and its transcript."""
    voice = recording.path.partition("/")[0]
    random = _make_generator(recording)
    parts = [_make_silence(EDGE_S)]
    transcript: list[dict[str, float | str]] = []
    for sentence in recording.sentences:
        speech = speak(voice, sentence)
        start = sum(map(len, parts))
        transcript.append({"start": _to_seconds(start), "end": _to_seconds(start + len(speech)), "text": sentence})
        parts += [speech, _make_silence(random.uniform(*PAUSE_S))]
    return np.concatenate([*parts[:-1], _make_silence(EDGE_S)]), transcript


def speak(voice: str, text: str) -> Wave:
    """One sentence at `FLITE_HZ`: trimmed to its audible part, a whole number of milliseconds, peak at -6 dB of full scale."""
    try:
        spoken = subprocess.run(["flite", "-voice", voice, "-t", text, "-o", "/dev/stdout"], capture_output=True, check=True)
    except FileNotFoundError:
        raise UserError("the flite command is missing; install it (Debian: apt-get install flite)") from None
    wave, rate = soundfile.read(io.BytesIO(spoken.stdout), dtype="float32")
    if rate != FLITE_HZ:
        raise UserError(f"flite voice {voice} speaks at {rate} Hz, expected {FLITE_HZ}; use one of slt, rms")
    wave = wave * np.float32(PEAK / np.abs(wave).max())
    audible = np.flatnonzero(np.abs(wave) > PEAK * SILENCE)
    wave = wave[audible[0] : audible[-1] + 1]
    return np.pad(wave, (0, -len(wave) % SAMPLES_PER_MS))


def encode_recording(recording: SampleRecording, wave: Wave) -> bytes:
    """Bytes of the file: resampled once, copied to the channels, with independent room noise in each channel."""
    if recording.rate != FLITE_HZ:
        wave = soxr.resample(wave, FLITE_HZ, recording.rate, quality="VHQ")
    gains = np.linspace(1.0, 0.8, recording.channels, dtype=np.float32)
    noise = _make_generator(recording).normal(0.0, ROOM, (len(wave), recording.channels))
    spread = wave[:, None] * gains + noise.astype(np.float32)
    kind = Path(recording.path).suffix[1:]
    subtype = {"wav": "PCM_16", "flac": "PCM_16", "ogg": "OPUS", "mp3": "MPEG_LAYER_III"}[kind]
    buffer = io.BytesIO()
    soundfile.write(buffer, spread, recording.rate, format=kind.upper(), subtype=subtype)
    return buffer.getvalue()


def _to_seconds(samples: int) -> float:
    return round(samples / FLITE_HZ, 3)


def _make_silence(seconds: float) -> Wave:
    return np.zeros(round(seconds * 1000) * SAMPLES_PER_MS, dtype=np.float32)


def _make_generator(recording: SampleRecording) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(recording.path.encode()))


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
