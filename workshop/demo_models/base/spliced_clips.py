"""Spliced clips, from which the base learns to read: codes of single words in random order.

    python -m workshop.demo_models.base.spliced_clips [--corpus runs/studio/corpus]

Needs the codes of `base-alone.jsonl` and `base-train.jsonl` (`prepare_base_training`). Writes `base-spliced.jsonl`, and `base-mixed.jsonl`:
`base-train.jsonl` with some spliced clips. At each joint, only the text predicts the next code: a model that does not read pays log 200
nats per word. In continuous speech, the beginning of a word reveals the rest of it, and a model with many such clips memorizes them before
it learns to read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files
from overtone.finetune.storage.text_lines import read_lines
from workshop.demo_models.corpus import make_corpus
from workshop.demo_models.corpus.voices import KNOWN_VOICES

Row = dict[str, Any]
Frames = list[list[int]]
SPLICED, MAX_WORDS = 40_000, 6
MIXED, MAX_MIXED_WORDS = 6_000, 10
"""Spliced clips among the spoken ones, in longer texts, so that the model does not forget how to read."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="spliced_clips", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    alone, spoken = read_coded_rows(options.corpus / "base-alone.jsonl"), read_coded_rows(options.corpus / "base-train.jsonl")
    mixed = [*spoken, *islice(splice_clips(alone, spoken, options.seed + 1, MAX_MIXED_WORDS), MIXED)]
    Random(options.seed).shuffle(mixed)
    files.write_jsonl(options.corpus / "base-spliced.jsonl", islice(splice_clips(alone, spoken, options.seed, MAX_WORDS), SPLICED))
    files.write_jsonl(options.corpus / "base-mixed.jsonl", mixed)
    return 0


def read_coded_rows(path: Path) -> list[Row]:
    """The rows of a file. Raises `UserError` if it does not exist, or if a row has no codes."""
    if not path.exists():
        raise UserError(f"{path} is missing; create it: python -m workshop.demo_models.base.prepare_base_training")
    rows = [json.loads(line) for line in read_lines(path)]
    for number, row in enumerate(rows, start=1):
        if "audio_codes" not in row:
            raise UserError(f"{path}:{number}: no audio_codes; run: overtone codes {path} --model runs/studio/codec/coder")
    return rows


def splice_clips(alone: Sequence[Row], spoken: Sequence[Row], seed: int, max_words: int) -> Iterator[Row]:
    """Endless: `The` and one to `max_words` words, all at one speed.

    Each row names a different spoken clip as reference: single words are too short for it, and the speaker vector is the mean over the
    named clips, so with one clip for all rows it would be the vector of that clip.
    """
    random, takes_of = Random(seed), group_words(alone)
    references = group_clips(spoken)
    shares = {voice.name: voice.sentences for voice in KNOWN_VOICES if voice.name in takes_of}
    while True:
        speaker = random.choices(list(shares), list(shares.values()))[0]
        takes = random.choice(takes_of[speaker])
        words = random.choices(list(takes), k=random.randint(1, max_words))
        yield {
            "ref_audio": random.choice(references[speaker]),
            "text": f"The {' '.join(words)}.",
            "speaker": speaker,
            "language": "english",
            "audio_codes": [frame for word in ("the", *words) for frame in takes[word]],
        }


def group_words(alone: Sequence[Row]) -> dict[str, list[dict[str, Frames]]]:
    """Speaker → for each speed, word → its frames. A speed without `the` is skipped: its clip may have been rejected."""
    words_at: dict[tuple[str, float], dict[str, Frames]] = defaultdict(dict)
    for row in alone:
        words_at[row["speaker"], row["speed"]][row["text"].rstrip(".")] = row["audio_codes"]
    takes: dict[str, list[dict[str, Frames]]] = defaultdict(list)
    for (speaker, _), words in words_at.items():
        if "the" in words:
            takes[speaker].append(words)
    return takes


def group_clips(spoken: Sequence[Row]) -> dict[str, list[str]]:
    """Speaker → paths of all clips."""
    clips: dict[str, list[str]] = defaultdict(list)
    for row in spoken:
        clips[row["speaker"]].append(row["audio"])
    return clips


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
