"""Number and digest of each group of sentences: what the base was trained on, what the demo trains on, and what it reports.

    python -m workshop.demo_models.corpus.sentence_split_digests [FILE]

Writes FILE (default `new_voice/sentences.json` beside this file): for each group of sentences their number and a digest. You need not run
this: the file is in the repository. A test computes the groups again from the generator, compares the digests, and checks that the base
and the demo were trained on none of the reported sentences.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from overtone.finetune.errors import catch_user_errors
from overtone.finetune.storage import files, strict_json
from overtone.finetune.storage.text_lines import read_lines
from overtone.finetune.terminal import print_line
from workshop.demo_models.corpus import make_corpus, make_new_voice
from workshop.demo_models.corpus.make_corpus import CorpusLine
from workshop.demo_models.corpus.voices import KNOWN_VOICES

FILE = make_new_voice.FOLDER / "sentences.json"
CORPUS_SEED = 0

Groups = dict[str, frozenset[str]]
"""Name → sentences."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="sentence_split_digests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", nargs="?", type=Path, default=FILE)
    options = parser.parse_args(argv)
    files.write_json(options.file, describe_sentences(collect_base_sentences(), collect_demo_sentences()))
    print_line(options.file)
    return 0


def collect_base_sentences() -> Groups:
    """`<speaker> <split>` → the sentences that the base was trained on. Resampled voices have their size in percent in their name."""
    groups: dict[str, set[str]] = defaultdict(set)
    for line in make_corpus.plan_lines(CORPUS_SEED):
        if is_for_base(line):
            groups[f"{line.speaker} {line.split}"].add(line.text)
    return {name: frozenset(texts) for name, texts in sorted(groups.items())}


def is_for_base(line: CorpusLine) -> bool:
    """Return whether the base is trained on a line of the corpus: the known voices, and the new voice at other sizes; nothing that is held
    out."""
    return line.split != "held_out" and (line.voice in KNOWN_VOICES or line.size != 1.0)


def collect_demo_sentences() -> Groups:
    """The sentences of the demo: `recordings` are trained on, `choosing` are for comparing settings, `reported` are in its table."""
    reported = make_new_voice.FOLDER / "held_out.jsonl"
    script = strict_json.loads((make_new_voice.FOLDER / "script.json").read_text(encoding="utf-8"))
    return {
        "recordings": frozenset(line["text"] for line in script),
        "choosing": frozenset(make_new_voice.list_choosing_sentences()),
        "reported": frozenset(strict_json.loads(line)["text"] for line in read_lines(reported)),
    }


def describe_sentences(base: Groups, demo: Groups) -> dict[str, Any]:
    """The content of FILE."""
    return {
        "base": {name: describe_group(texts) for name, texts in base.items()},
        "demo": {name: describe_group(texts) for name, texts in demo.items()},
    }


def describe_group(sentences: Iterable[str]) -> dict[str, Any]:
    """Number of sentences, and the SHA-256 of the sorted sentences, one per line."""
    ordered = sorted(set(sentences))
    return {"sentences": len(ordered), "sha256": hashlib.sha256("".join(f"{text}\n" for text in ordered).encode()).hexdigest()}


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
