"""Make the corpus of the demo models: synthetic voices that say sentences of the grammar.

    python -m recipes.voice_clone.studio.corpus.make_corpus [FOLDER] [--sentences-per-voice N] [--seed 0]

Needs Debian's flite, festival with festvox-kdlpc16k and espeak-ng. FOLDER (default runs/studio/corpus) gets `audio/<speaker>/*.flac`
(24 kHz mono), `lexicon.json` (phones of every word) and, last, `corpus.jsonl`. The same seed gives the same bytes; clips that are there
already are kept, so a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Literal

import soundfile

from data_prep.audio.waveform import Audio, encode_flac
from finetune.errors import UserError, exit_code
from finetune.storage import files
from recipes.voice_clone.studio.corpus import grammar
from recipes.voice_clone.studio.corpus.closed_form_speaker_encoder import resized
from recipes.voice_clone.studio.corpus.voices import KNOWN_VOICES, RATE, VOICES, Voice, phones, speak

FOLDER = Path("runs/studio/corpus")
Split = Literal["train", "held_out", "more", "sizes", "words", "alone"]
"""Sentences to train on, sentences that no training sees, and for the base besides: more sentences, some by voices with a mouth of another
size, words without a sense, and each word for itself."""
SPEEDS = (0.85, 1.18)
"""Of training; what is held out is said at the voice's own speed."""
MORE = 1.4
"""Sentences of `more` for each of `train`: of 10,000 the base knew its own by heart long before it could say others."""
SIZED = 0.25
"""Sentences of `sizes` by each such voice for each of `train`: six voices are too few to learn from what a voice is."""
SIZES = (0.8, 0.86, 0.93, 1.08, 1.16)
FAR = (0.8, 0.86, 1.16)
"""Sizes of the new voice. Nearer ones the base does not hear, and the voice itself neither; but a codec of seven voices has codes of each
voice's own, and without any of these the base meets a new one as another alphabet."""
MOST_WORDS = (4, 10)
"""Without a sense at a time, in the first clips and in as many more. In sentences so much follows from the grammar that a model can long do
without reading; here nothing does."""
ALONE_SPEEDS = (1.0, 1.15, 1.3)
"""A word for itself is said slowly; faster it is nearer to what it is in a sentence."""
HELD_OUT_SENTENCES = 100
"""Every voice says the same ones."""


@dataclass(frozen=True)
class Line:
    """One sentence to be spoken."""

    voice: Voice
    text: str
    split: Split
    speed: float
    size: float = 1.0
    """Of the mouth; see `closed_form_speaker_encoder.resized`."""

    @property
    def speaker(self) -> str:
        return self.voice.name if self.size == 1.0 else f"{self.voice.name}-{round(100 * self.size)}"

    @property
    def audio(self) -> str:
        key = zlib.crc32(f"{self.text}|{self.speed}".encode())
        return f"audio/{self.speaker}/{self.split}-{key:08x}.flac"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make_corpus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--sentences-per-voice", type=int, help="for training (default: as many as each voice has in voices.py)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.sentences_per_voice is not None and options.sentences_per_voice < 1:
        raise UserError(f"--sentences-per-voice {options.sentences_per_voice}: at least 1")
    rows = make(options.folder, options.seed, options.sentences_per_voice)
    for (speaker, split), seconds in sorted(_seconds(rows).items()):
        print(f"{speaker} {split}: {seconds / 60:.1f} min")
    print(f"{len(rows)} clips, {len(grammar.vocabulary())} words -> {options.folder / 'corpus.jsonl'}")
    return 0


def make(folder: Path, seed: int, sentences_per_voice: int | None = None) -> list[dict[str, Any]]:
    """Speak what is missing in `folder`; returns the rows of its `corpus.jsonl`."""
    files.write_json(folder / "lexicon.json", {word: phones(word) for word in grammar.vocabulary()})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(lambda line: _spoken(folder, line), plan(seed, sentences_per_voice)))
    files.write_jsonl(folder / "corpus.jsonl", rows)
    return rows


def plan(seed: int, sentences_per_voice: int | None = None) -> list[Line]:
    """All lines: in training, no two voices say the same sentence; the held-out ones are said by all."""
    train, random = grammar.sentences(seed, "train"), Random(seed)
    held_out = list(islice(grammar.sentences(seed, "held_out"), HELD_OUT_SENTENCES if sentences_per_voice is None else sentences_per_voice))
    lines = []
    for voice in VOICES:
        texts = islice(train, sentences_per_voice or voice.sentences)
        lines += [Line(voice, text, "train", round(random.uniform(*SPEEDS), 2)) for text in texts]
        lines += [Line(voice, text, "held_out", 1.0) for text in held_out]
    for voice in KNOWN_VOICES:
        texts = islice(train, round(MORE * (sentences_per_voice or voice.sentences)))
        lines += [Line(voice, text, "more", round(random.uniform(*SPEEDS), 2)) for text in texts]
    of_each = math.ceil(SIZED * (sentences_per_voice or max(voice.sentences for voice in VOICES)))
    for voice in VOICES:
        for size in SIZES if voice in KNOWN_VOICES else FAR:
            lines += [Line(voice, text, "sizes", round(random.uniform(*SPEEDS), 2), size) for text in islice(train, of_each)]
    for draw, most in enumerate(MOST_WORDS, start=1):
        lines += senseless(seed + draw, most, sentences_per_voice)
    words = mid_sentence_words()[:sentences_per_voice]
    return [*lines, *(Line(voice, f"{word}.", "alone", speed) for voice in KNOWN_VOICES for word in words for speed in ALONE_SPEEDS)]


def senseless(seed: int, most: int, sentences_per_voice: int | None = None) -> Iterator[Line]:
    """`The` and one to `most` words by chance, at each known voice's own speed, as many as it has sentences; no two voices say the same."""
    random, words, said = Random(seed), mid_sentence_words(), set[str]()
    for voice in KNOWN_VOICES:
        wanted = len(said) + (sentences_per_voice or voice.sentences)
        while len(said) < wanted:
            text = f"The {' '.join(random.choices(words, k=random.randint(1, most)))}."
            if text not in said:
                said.add(text)
                yield Line(voice, text, "words", 1.0)


def mid_sentence_words() -> list[str]:
    """As they are written inside of a sentence: only there is each one token of the base."""
    capitals = {word.lower(): word for word in (*grammar.NAMES, "Sunday", "Monday", "Friday")}
    return [capitals.get(word, word) for word in grammar.vocabulary()]


def _spoken(folder: Path, line: Line) -> dict[str, Any]:
    path = folder / line.audio
    if not path.exists():
        files.write_bytes(path, encode_flac(Audio(resized(speak(line.voice, line.text, line.speed), line.size), RATE)))
    return {
        "audio": line.audio,
        "text": line.text,
        "speaker": line.speaker,
        "language": "English",
        "duration": round(soundfile.info(path).duration, 3),
        "split": line.split,
        "new_voice": line.voice not in KNOWN_VOICES and line.size == 1.0,
        "speed": line.speed,
    }


def _seconds(rows: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    seconds: Counter[tuple[str, str]] = Counter()
    for row in rows:
        seconds[row["speaker"], row["split"]] += row["duration"]
    return seconds


def first_of_each(rows: Iterable[dict[str, Any]], split: Split, count: int) -> list[dict[str, Any]]:
    """The first rows of each speaker in a split."""
    taken: Counter[str] = Counter()
    found = []
    for row in rows:
        if row["split"] == split and taken[row["speaker"]] < count:
            taken[row["speaker"]] += 1
            found.append(row)
    return found


def lines_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of a finished corpus. Raises `UserError` if there is none."""
    path = folder / "corpus.jsonl"
    if not path.exists():
        raise UserError(f"{path} is missing; make it: python -m recipes.voice_clone.studio.corpus.make_corpus {folder}")
    with path.open(encoding="utf-8") as stream:
        yield from map(json.loads, stream)


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
