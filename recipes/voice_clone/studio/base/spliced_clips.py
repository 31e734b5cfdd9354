"""Clips that were never spoken, from which the base learns to read: words said for themselves, joined by chance at their codes.

    python -m recipes.voice_clone.studio.base.spliced_clips [--corpus runs/studio/corpus]

Needs the codes of `base-alone.jsonl` and `base-train.jsonl` (`make_base`); writes `base-spliced.jsonl`, and `base-mixed.jsonl`, which is
`base-train.jsonl` with some spliced clips among it. At every joint the next code follows from nothing but the text: who does not read pays
log 200 nats for each word. In speech that was spoken as one, a word's beginning betrays itself long before, and a model that has many such
clips learns them by heart sooner than it learns to read.
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

from finetune.errors import UserError, exit_code
from finetune.storage import files
from recipes.voice_clone.studio.corpus import make_corpus
from recipes.voice_clone.studio.corpus.voices import KNOWN_VOICES

Row = dict[str, Any]
Frames = list[list[int]]
SPLICED, MOST_WORDS = 40_000, 6
MIXED, MOST_MIXED_WORDS = 6_000, 10
"""Among the spoken clips, so that what was learned is not lost, and in longer texts."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="splices", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    alone, spoken = coded(options.corpus / "base-alone.jsonl"), coded(options.corpus / "base-train.jsonl")
    mixed = [*spoken, *islice(spliced(alone, spoken, options.seed + 1, MOST_MIXED_WORDS), MIXED)]
    Random(options.seed).shuffle(mixed)
    files.write_jsonl(options.corpus / "base-spliced.jsonl", islice(spliced(alone, spoken, options.seed, MOST_WORDS), SPLICED))
    files.write_jsonl(options.corpus / "base-mixed.jsonl", mixed)
    return 0


def coded(path: Path) -> list[Row]:
    """The rows of a file. Raises `UserError` if there is none, or if a row has no codes."""
    if not path.exists():
        raise UserError(f"{path} is missing; make it: python -m recipes.voice_clone.studio.base.make_base")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for number, row in enumerate(rows, start=1):
        if "audio_codes" not in row:
            raise UserError(f"{path}:{number}: no audio_codes; run: python -m data_prep codes {path} --model runs/studio/codec/coder")
    return rows


def spliced(alone: Sequence[Row], spoken: Sequence[Row], seed: int, most: int) -> Iterator[Row]:
    """Without end: `The` and one to `most` words, all at one speed.

    The voice is heard from a spoken clip, a word is too short for that: from another one each time, since the speaker's vector is the mean
    over clips that rows name, and would be that of one clip if all named the same.
    """
    random, said = Random(seed), renditions(alone)
    references = clips_of(spoken)
    shares = {voice.name: voice.sentences for voice in KNOWN_VOICES if voice.name in said}
    while True:
        speaker = random.choices(list(shares), list(shares.values()))[0]
        takes = random.choice(said[speaker])
        words = random.choices(list(takes), k=random.randint(1, most))
        yield {
            "ref_audio": random.choice(references[speaker]),
            "text": f"The {' '.join(words)}.",
            "speaker": speaker,
            "language": "english",
            "audio_codes": [frame for word in ("the", *words) for frame in takes[word]],
        }


def renditions(alone: Sequence[Row]) -> dict[str, list[dict[str, Frames]]]:
    """Speaker → for each speed, word → its frames. A speed at which `the` is missing does not count: a clip may have been rejected."""
    said: dict[tuple[str, float], dict[str, Frames]] = defaultdict(dict)
    for row in alone:
        said[row["speaker"], row["speed"]][row["text"].rstrip(".")] = row["audio_codes"]
    takes: dict[str, list[dict[str, Frames]]] = defaultdict(list)
    for (speaker, _), words in said.items():
        if "the" in words:
            takes[speaker].append(words)
    return takes


def clips_of(spoken: Sequence[Row]) -> dict[str, list[str]]:
    """Speaker → paths of all clips."""
    clips: dict[str, list[str]] = defaultdict(list)
    for row in spoken:
        clips[row["speaker"]].append(row["audio"])
    return clips


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
