"""Errors of the texts of recordings that are joined from prompts, counted on the words of chosen prompts."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import jiwer

from overtone.recipes.speech.evaluation.intelligibility import normalize
from tests.data_prep.telephone_prompts import Cue

PAUSE_SECONDS = 1.0
"""Silence at the edges of a prompt and inside it, which clips need not contain."""


class WordErrors(NamedTuple):
    """Substitutions, deletions and insertions, and the words that were spoken."""

    errors: int
    words: int


def count_word_errors(cues: Sequence[Cue], text: str, chosen: Collection[int]) -> WordErrors:
    """The errors of `text`, in which other prompts may be missing, in the words of the `chosen` prompts. An inserted word counts for the
    prompt of the word before it."""
    spoken = [normalize(cue.text, "english").split() for cue in cues]
    owners = [index for index, words in enumerate(spoken) for _ in words]
    found = normalize(text, "english").split()
    errors = 0
    for part in jiwer.process_words(" ".join(word for words in spoken for word in words), " ".join(found)).alignments[0]:
        if part.type == "insert":
            owner = owners[max(part.ref_start_idx - 1, 0)]
            errors += (part.hyp_end_idx - part.hyp_start_idx) * (owner in chosen)
        elif part.type != "equal":
            errors += sum(owners[at] in chosen for at in range(part.ref_start_idx, part.ref_end_idx))
    return WordErrors(errors, sum(len(spoken[index]) for index in chosen))


def read_clips(folder: Path) -> list[dict[str, object]]:
    """The kept clips of a dataset by recording and time."""
    lines = [
        line for name in ("train.jsonl", "val.jsonl") if (folder / name).is_file() for line in (folder / name).read_text().splitlines()
    ]
    return sorted(map(json.loads, lines), key=lambda row: (row["source"], row["start"]))


def find_kept_prompts(cues: Sequence[Cue], clips: Sequence[dict[str, object]]) -> set[int]:
    """The prompts of which all is in the clips except for pauses."""
    spans = [(float(str(clip["start"])), float(str(clip["end"]))) for clip in clips]
    covered = [sum(max(0.0, min(cue.end, end) - max(cue.start, start)) for start, end in spans) for cue in cues]
    return {
        index for index, cue in enumerate(cues) if covered[index] > max(cue.end - cue.start - PAUSE_SECONDS, 0.6 * (cue.end - cue.start))
    }
