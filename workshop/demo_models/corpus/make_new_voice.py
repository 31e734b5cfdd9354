"""Rebuild the material for the new voice: raw recordings of a voice that is new to the base, and clips to evaluate a model of it.

    python -m workshop.demo_models.corpus.make_new_voice [FOLDER] [--seed 7]

Needs Debian's flite, festival with festvox-kdlpc16k and espeak-ng. You need not run this: its output is in the repository. Writes to FOLDER
(default: `new_voice/` beside this file)

- `recordings/<voice>/`: two long recordings in two formats, with pauses, coughs and a passage with a vacuum cleaner; and a damaged one;
- `script.json`: the sentences in them, `[{"recording", "start", "end", "text"}]`, in seconds;
- `held_out/` and `held_out.jsonl`: held-out sentences of the grammar, spoken by the voice itself;
- `known/<voice>/`: clips of each voice that the base was trained on, to measure which voice speech is most similar to.
"""

from __future__ import annotations

import argparse
import io
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr

from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import demo_models, files
from overtone.finetune.terminal import print_line
from workshop.demo_models.corpus import grammar
from workshop.demo_models.corpus.voices import KNOWN_VOICES, NEW_VOICE, RATE, SyntheticVoice, Wave, make_silence, speak

FOLDER = demo_models.data_folder() / "new_voice"
SEED = 7
PAUSE_S, EDGE_S = (0.6, 1.3), 0.8
ROOM, VACUUM, COUGH = 10 ** (-62 / 20), 10 ** (-24 / 20), 10 ** (-14 / 20)
"""RMS of noises, relative to full scale; speech has about -20 dB."""
COUGH_S = 0.35
HELD_OUT, PER_KNOWN_VOICE, MORE_HELD_OUT = 12, 3, 28
"""Held-out sentences of the new voice, of each known voice, and further ones of the new voice, in this order. The demo reports all of the
new voice."""
CHOOSING = 40
"""Further held-out sentences, after all others, to compare settings with; none of them is reported."""


@dataclass(frozen=True)
class RecordingSession:
    """One recording."""

    name: str
    rate: int
    """Hz."""
    subtype: str
    """In soundfile."""
    sentences: int
    coughs: tuple[int, ...] = ()
    """Sentences before which there is a cough."""
    vacuum: range = range(0)
    """Sentences during which the vacuum cleaner runs."""
    damaged: bool = False


SESSIONS = (
    RecordingSession("morning.mp3", 44_100, "MPEG_LAYER_III", 64, coughs=(9, 22)),
    RecordingSession("evening.ogg", 48_000, "OPUS", 64, vacuum=range(40, 43)),
    RecordingSession("torn.flac", 16_000, "PCM_16", 5, damaged=True),
)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make_new_voice", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args(argv)
    if options.folder.exists():
        raise UserError(f"{options.folder} already exists; remove it or choose another folder")
    write_new_voice(options.folder, options.seed)
    size = sum(path.stat().st_size for path in options.folder.rglob("*") if path.is_file())
    print_line(f"{options.folder}: {size:,} bytes")
    return 0


def write_new_voice(folder: Path, seed: int) -> None:
    """Write all files; the same seed and the same synthesizers give the same audio."""
    recorded, held_out = grammar.generate_sentences(seed, "train"), grammar.generate_sentences(seed, "held_out")
    script = [line for session in SESSIONS for line in write_recording(folder, session, list(islice(recorded, session.sentences)))]
    files.write_json(folder / "script.json", script)
    reported = list(islice(held_out, HELD_OUT))
    for voice in KNOWN_VOICES:
        for number, text in enumerate(islice(held_out, PER_KNOWN_VOICE)):
            write_clip(folder / "known" / voice.name / f"{number}.ogg", voice, text)
    files.write_jsonl(folder / "held_out.jsonl", write_held_out(folder, [*reported, *islice(held_out, MORE_HELD_OUT)]))


def list_choosing_sentences(seed: int = SEED, count: int = CHOOSING) -> list[str]:
    """The first `count` held-out sentences to compare settings of the demo with; none of them is reported."""
    others = HELD_OUT + PER_KNOWN_VOICE * len(KNOWN_VOICES) + MORE_HELD_OUT
    return list(islice(grammar.generate_sentences(seed, "held_out"), others, others + count))


def write_recording(folder: Path, session: RecordingSession, sentences: Sequence[str]) -> list[dict[str, Any]]:
    """Write one recording; returns its lines of the script."""
    random = np.random.default_rng(zlib.crc32(session.name.encode()))
    parts, lines, noisy = [make_silence(EDGE_S)], [], []
    for number, text in enumerate(sentences):
        if number in session.coughs:
            parts += [make_cough(random), make_silence(PAUSE_S[0])]
        wave, start = speak(NEW_VOICE, text), sum(map(len, parts))
        noisy += [(start - RATE // 4, start + len(wave) + RATE // 4)] if number in session.vacuum else []
        parts += [wave, make_silence(random.uniform(*PAUSE_S))]
        place = {"start": round(start / RATE, 3), "end": round((start + len(wave)) / RATE, 3)}
        lines.append({"recording": session.name, **place, "text": text})
    sound = np.concatenate([*parts[:-1], make_silence(EDGE_S)])
    sound += random.normal(0, ROOM, len(sound)).astype(np.float32)
    for start, stop in noisy:
        sound[start:stop] += random.normal(0, VACUUM, stop - start).astype(np.float32)
    data = encode_audio(sound, session.rate, Path(session.name).suffix[1:], session.subtype)
    files.write_bytes(folder / "recordings" / NEW_VOICE.name / session.name, truncate_file(data) if session.damaged else data)
    return lines


def write_held_out(folder: Path, sentences: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Write the clips and yield their rows for `overtone eval-voice`, each with another clip of the voice, for models that clone."""
    clips = [f"held_out/{number:02d}.ogg" for number in range(len(sentences))]
    for number, (clip, text) in enumerate(zip(clips, sentences, strict=True)):
        write_clip(folder / clip, NEW_VOICE, text)
        reference = clips[(number + 1) % len(clips)]
        yield {"audio": clip, "text": text, "speaker": NEW_VOICE.name, "language": "english", "ref_audio": reference}


def write_clip(path: Path, voice: SyntheticVoice, text: str) -> None:
    files.write_bytes(path, encode_audio(speak(voice, text), 48_000, "ogg", "OPUS"))


def encode_audio(wave: Wave, rate: int, kind: str, subtype: str) -> bytes:
    """Bytes of an audio file, from samples at `RATE`."""
    buffer = io.BytesIO()
    soundfile.write(buffer, soxr.resample(wave, RATE, rate, quality="VHQ"), rate, format=kind.upper(), subtype=subtype)
    return buffer.getvalue()


def make_cough(random: np.random.Generator) -> Wave:
    """Two decaying bursts of noise: loud, and not speech."""
    time = np.arange(round(COUGH_S * RATE)) / RATE
    envelope = np.exp(-time / 0.05) + 0.6 * np.exp(-np.abs(time - 0.18) / 0.04)
    return (COUGH * envelope * random.normal(0, 1, len(time))).astype(np.float32)


def truncate_file(data: bytes) -> bytes:
    """A third of the file, then zeros, as after a disk failure."""
    third = len(data) // 3
    return data[:third] + bytes(third)


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
