"""Make the corpus of the demo models: sentences of the grammar, spoken by synthetic voices.

    python -m workshop.demo_models.corpus.make_corpus [FOLDER] [--sentences-per-voice N] [--seed 0]

Needs Debian's flite, festival with festvox-kdlpc16k and espeak-ng. Writes to FOLDER (default runs/studio/corpus) `audio/<speaker>/*.flac`
(24 kHz mono), `lexicon.json` (phones of every word) and, last, `corpus.jsonl`. The same seed gives the same bytes. Existing clips are kept,
so the same command resumes an interrupted run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeVar

import soundfile

from overtone.data_prep.audio.waveform import Audio, encode_flac
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line
from workshop.demo_models.corpus import grammar
from workshop.demo_models.corpus.closed_form_speaker_encoder import resample_voice
from workshop.demo_models.corpus.voices import KNOWN_VOICES, RATE, VOICES, SyntheticVoice, list_phones, speak

ItemT = TypeVar("ItemT")
FOLDER = Path("runs/studio/corpus")
Split = Literal["train", "held_out", "more", "sizes", "words", "alone"]
"""Training sentences, and held-out sentences; for the base also: more sentences, sentences in resampled voices, random words, and single
words."""
SPEEDS = (0.85, 1.18)
"""Range of the speed in training; held-out sentences are spoken at the voice's own speed."""
MORE_SHARE = 1.4
"""Sentences of `more` per sentence of `train`. With 10,000 sentences, the base memorized them long before it could speak others."""
SIZED_SHARE = 0.25
"""Sentences of `sizes` in each resampled voice per sentence of `train`. Six voices are too few to learn what characterizes a voice."""
SIZES = (0.8, 0.86, 0.93, 1.08, 1.16)
FAR_SIZES = (0.8, 0.86, 1.16)
"""Sizes of the new voice. The base is trained on none nearer to 1 and not on the voice itself. Without any of them, the codec, which has
separate codes for each of its seven voices, would give the base unknown codes for the new voice."""
MAX_WORDS = (4, 10)
"""Maximum random words at a time, in the first clips and in as many further ones. In sentences, the grammar predicts so much that a model
can do without reading for a long time; here nothing does."""
ALONE_SPEEDS = (1.0, 1.15, 1.3)
"""Single words are spoken slowly; faster ones are closer to words in a sentence."""
HELD_OUT_SENTENCES = 100
"""The same ones for every voice."""


@dataclass(frozen=True)
class CorpusLine:
    """One sentence to synthesize."""

    voice: SyntheticVoice
    text: str
    split: Split
    speed: float
    size: float = 1.0
    """Size of the vocal tract; see `closed_form_speaker_encoder.resample_voice`."""

    @property
    def speaker(self) -> str:
        """Name of the voice; resampled voices have their own names."""
        return self.voice.name if self.size == 1.0 else f"{self.voice.name}-{round(100 * self.size)}"

    @property
    def audio(self) -> str:
        """Path of the clip in the corpus."""
        key = zlib.crc32(f"{self.text}|{self.speed}".encode())
        return f"audio/{self.speaker}/{self.split}-{key:08x}.flac"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make_corpus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--sentences-per-voice", type=int, help="training sentences per voice (default: its number in voices.py)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.sentences_per_voice is not None and options.sentences_per_voice < 1:
        raise UserError(f"--sentences-per-voice {options.sentences_per_voice}: must be at least 1")
    rows = write_corpus(options.folder, options.seed, options.sentences_per_voice)
    for (speaker, split), seconds in sorted(_sum_seconds(rows).items()):
        print_line(f"{speaker} {split}: {seconds / 60:.1f} min")
    print_line(f"{len(rows)} clips, {len(grammar.list_words())} words -> {options.folder / 'corpus.jsonl'}")
    return 0


def write_corpus(folder: Path, seed: int, sentences_per_voice: int | None = None) -> list[dict[str, Any]]:
    """Synthesize the missing clips in `folder`; returns the rows of its `corpus.jsonl`."""
    files.write_json(folder / "lexicon.json", {word: list_phones(word) for word in grammar.list_words()})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(lambda line: _speak_line(folder, line), plan_lines(seed, sentences_per_voice)))
    files.write_jsonl(folder / "corpus.jsonl", rows)
    return rows


def plan_lines(seed: int, sentences_per_voice: int | None = None) -> list[CorpusLine]:
    """All lines. No two voices have the same training sentence; all have the same held-out sentences."""
    train, random = grammar.generate_sentences(seed, "train"), Random(seed)
    held_out = list(
        islice(grammar.generate_sentences(seed, "held_out"), HELD_OUT_SENTENCES if sentences_per_voice is None else sentences_per_voice)
    )
    lines = []
    for voice in VOICES:
        texts = islice(train, sentences_per_voice or voice.sentences)
        lines += [CorpusLine(voice, text, "train", round(random.uniform(*SPEEDS), 2)) for text in texts]
        lines += [CorpusLine(voice, text, "held_out", 1.0) for text in held_out]
    for voice in KNOWN_VOICES:
        texts = islice(train, round(MORE_SHARE * (sentences_per_voice or voice.sentences)))
        lines += [CorpusLine(voice, text, "more", round(random.uniform(*SPEEDS), 2)) for text in texts]
    of_each = math.ceil(SIZED_SHARE * (sentences_per_voice or max(voice.sentences for voice in VOICES)))
    for voice in VOICES:
        for size in SIZES if voice in KNOWN_VOICES else FAR_SIZES:
            lines += [CorpusLine(voice, text, "sizes", round(random.uniform(*SPEEDS), 2), size) for text in islice(train, of_each)]
    for draw, max_words in enumerate(MAX_WORDS, start=1):
        lines += plan_random_words(seed + draw, max_words, sentences_per_voice)
    words = list_mid_sentence_words()[:sentences_per_voice]
    return [*lines, *(CorpusLine(voice, f"{word}.", "alone", speed) for voice in KNOWN_VOICES for word in words for speed in ALONE_SPEEDS)]


def plan_random_words(seed: int, max_words: int, sentences_per_voice: int | None = None) -> Iterator[CorpusLine]:
    """`The` and one to `max_words` random words, at each known voice's own speed, as many as it has sentences; no two voices have the same
    text."""
    random, words, texts = Random(seed), list_mid_sentence_words(), set[str]()
    for voice in KNOWN_VOICES:
        wanted = len(texts) + (sentences_per_voice or voice.sentences)
        while len(texts) < wanted:
            text = f"The {' '.join(random.choices(words, k=random.randint(1, max_words)))}."
            if text not in texts:
                texts.add(text)
                yield CorpusLine(voice, text, "words", 1.0)


def list_mid_sentence_words() -> list[str]:
    """Words with the capitals that they have within a sentence: only so is each of them one token of the base."""
    capitals = {word.lower(): word for word in (*grammar.NAMES, "Sunday", "Monday", "Friday")}
    return [capitals.get(word, word) for word in grammar.list_words()]


def _speak_line(folder: Path, line: CorpusLine) -> dict[str, Any]:
    path = folder / line.audio
    if not path.exists():
        files.write_bytes(path, encode_flac(Audio(resample_voice(speak(line.voice, line.text, line.speed), line.size), RATE)))
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


def _sum_seconds(rows: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    seconds: Counter[tuple[str, str]] = Counter()
    for row in rows:
        seconds[row["speaker"], row["split"]] += row["duration"]
    return seconds


def select_first(rows: Iterable[dict[str, Any]], split: Split, count: int) -> list[dict[str, Any]]:
    """The first `count` rows of each speaker in a split."""
    return take_first((row for row in rows if row["split"] == split), lambda row: row["speaker"], count)


def take_first(items: Iterable[ItemT], find_speaker: Callable[[ItemT], str], count: int) -> list[ItemT]:
    """The first `count` items of each speaker, in their order."""
    taken: Counter[str] = Counter()
    found = []
    for item in items:
        speaker = find_speaker(item)
        if taken[speaker] < count:
            taken[speaker] += 1
            found.append(item)
    return found


def read_corpus(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of a finished corpus. Raises `UserError` if there is none."""
    path = folder / "corpus.jsonl"
    if not path.exists():
        raise UserError(f"{path} is missing; create it: python -m workshop.demo_models.corpus.make_corpus {folder}")
    with path.open(encoding="utf-8") as stream:
        yield from map(json.loads, stream)


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
