"""Rebuild the new voice's material: raw recordings of a voice that the base has not heard, and what to measure a model of it with.

    python -m recipes.voice_clone.studio.corpus.make_new_voice [FOLDER] [--seed 7]

Needs Debian's flite, festival with festvox-kdlpc16k and espeak-ng. Nobody has to run this: the result is part of the repository. FOLDER
(default: its place in the package) gets

- `recordings/<voice>/`: two long recordings in two formats, with pauses, a cough and a passage beside a vacuum cleaner; and a damaged one;
- `script.json`: what is said in them, `[{"recording", "start", "end", "text"}]`, in seconds;
- `held_out/` and `held_out.jsonl`: sentences of the grammar that no training sees, as the voice itself says them;
- `known/<voice>/`: some clips of each voice that the base was trained on, to tell whom speech resembles.
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

from finetune.errors import UserError, exit_code
from finetune.storage import files
from recipes.voice_clone.studio.corpus import grammar
from recipes.voice_clone.studio.corpus.voices import KNOWN_VOICES, NEW_VOICE, RATE, Voice, Wave, silence, speak

FOLDER = Path(__file__).resolve().parent / "new_voice"
PAUSE_S, EDGE_S = (0.6, 1.3), 0.8
ROOM, VACUUM, COUGH = 10 ** (-62 / 20), 10 ** (-24 / 20), 10 ** (-14 / 20)
"""RMS of noises, of full scale; speech has about -20 dB."""
COUGH_S = 0.35
HELD_OUT, OF_KNOWN = 12, 3
"""Sentences of the new voice, and of each known one."""


@dataclass(frozen=True)
class Session:
    """One recording."""

    name: str
    rate: int
    """Hz."""
    subtype: str
    """Of soundfile."""
    sentences: int
    coughs: tuple[int, ...] = ()
    """Before these sentences."""
    vacuum: range = range(0)
    """Under these sentences."""
    damaged: bool = False


SESSIONS = (
    Session("morning.mp3", 44_100, "MPEG_LAYER_III", 64, coughs=(9, 22)),
    Session("evening.ogg", 48_000, "OPUS", 64, vacuum=range(40, 43)),
    Session("torn.flac", 16_000, "PCM_16", 5, damaged=True),
)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make_new_voice", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(argv)
    if options.folder.exists():
        raise UserError(f"{options.folder} exists already; remove it or choose another folder")
    make(options.folder, options.seed)
    size = sum(path.stat().st_size for path in options.folder.rglob("*") if path.is_file())
    print(f"{options.folder}: {size:,} bytes")
    return 0


def make(folder: Path, seed: int) -> None:
    """All files; the same seed and the same synthesisers give the same sound."""
    told, unheard = grammar.sentences(seed, "train"), grammar.sentences(seed, "held_out")
    script = [line for session in SESSIONS for line in record(folder, session, list(islice(told, session.sentences)))]
    files.write_json(folder / "script.json", script)
    files.write_jsonl(folder / "held_out.jsonl", held_out(folder, list(islice(unheard, HELD_OUT))))
    for voice in KNOWN_VOICES:
        for number, text in enumerate(islice(unheard, OF_KNOWN)):
            write_clip(folder / "known" / voice.name / f"{number}.ogg", voice, text)


def record(folder: Path, session: Session, sentences: Sequence[str]) -> list[dict[str, Any]]:
    """Write one recording; returns its lines of the script."""
    random = np.random.default_rng(zlib.crc32(session.name.encode()))
    parts, lines, noisy = [silence(EDGE_S)], [], []
    for number, text in enumerate(sentences):
        if number in session.coughs:
            parts += [cough(random), silence(PAUSE_S[0])]
        wave, start = speak(NEW_VOICE, text), sum(map(len, parts))
        noisy += [(start - RATE // 4, start + len(wave) + RATE // 4)] if number in session.vacuum else []
        parts += [wave, silence(random.uniform(*PAUSE_S))]
        place = {"start": round(start / RATE, 3), "end": round((start + len(wave)) / RATE, 3)}
        lines.append({"recording": session.name, **place, "text": text})
    sound = np.concatenate([*parts[:-1], silence(EDGE_S)])
    sound += random.normal(0, ROOM, len(sound)).astype(np.float32)
    for start, stop in noisy:
        sound[start:stop] += random.normal(0, VACUUM, stop - start).astype(np.float32)
    data = encoded(sound, session.rate, Path(session.name).suffix[1:], session.subtype)
    files.write_bytes(folder / "recordings" / NEW_VOICE.name / session.name, torn(data) if session.damaged else data)
    return lines


def held_out(folder: Path, sentences: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows as `finetune eval-voice` reads them: each with another clip of the voice, for a model that clones."""
    clips = [f"held_out/{number:02d}.ogg" for number in range(len(sentences))]
    for number, (clip, text) in enumerate(zip(clips, sentences, strict=True)):
        write_clip(folder / clip, NEW_VOICE, text)
        reference = clips[(number + 1) % len(clips)]
        yield {"audio": clip, "text": text, "speaker": NEW_VOICE.name, "language": "english", "ref_audio": reference}


def write_clip(path: Path, voice: Voice, text: str) -> None:
    files.write_bytes(path, encoded(speak(voice, text), 48_000, "ogg", "OPUS"))


def encoded(wave: Wave, rate: int, kind: str, subtype: str) -> bytes:
    """The file's bytes, of samples at `RATE`."""
    buffer = io.BytesIO()
    soundfile.write(buffer, soxr.resample(wave, RATE, rate, quality="VHQ"), rate, format=kind.upper(), subtype=subtype)
    return buffer.getvalue()


def cough(random: np.random.Generator) -> Wave:
    """Two bursts of noise that die away: loud, and no speech."""
    time = np.arange(round(COUGH_S * RATE)) / RATE
    envelope = np.exp(-time / 0.05) + 0.6 * np.exp(-np.abs(time - 0.18) / 0.04)
    return (COUGH * envelope * random.normal(0, 1, len(time))).astype(np.float32)


def torn(data: bytes) -> bytes:
    """As a disk leaves a file that it lost the rest of."""
    third = len(data) // 3
    return data[:third] + bytes(third)


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
