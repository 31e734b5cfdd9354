"""Transcripts in a tree of folders beside the tree of recordings, as in VCTK: `wav48/p225/p225_001.wav` and `txt/p225/p225_001.txt`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from finetune.errors import format_count

TREES = ("txt", "text", "transcripts")
MICROPHONE = re.compile(r"_mic\d$")
"""VCTK 0.92 has two recordings of each sentence, from two microphones."""


def find_text_in_tree(recording: Path) -> Path | None:
    """The text file of a recording in a tree beside the folder of recordings, or beside that of its speaker's folder; None without one."""
    folder = recording.parent
    stem = MICROPHONE.sub("", recording.stem)
    places = [folder.parent / tree / f"{stem}.txt" for tree in TREES]
    places += [folder.parent.parent / tree / folder.name / f"{stem}.txt" for tree in TREES]
    return next((place for place in places if place.parent != folder and place.is_file()), None)


def find_tree_speaker(recording: Path, text: Path) -> str | None:
    """The name of the speaker's folder, if recordings and texts have one folder for each speaker."""
    return recording.parent.name if text.parent.name == recording.parent.name else None


def describe_trees(texts: Iterable[Path]) -> list[str]:
    """A note for each tree on how many of its files are used."""
    counts = Counter(next(parent for parent in text.parents if parent.name in TREES) for text in texts)
    return [f"{format_count(count, 'text')} of the folder {tree} used, as in VCTK" for tree, count in sorted(counts.items())]
