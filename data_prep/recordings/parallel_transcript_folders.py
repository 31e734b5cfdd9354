"""Transcripts in a tree of folders beside the tree of recordings, as in VCTK: `wav48/p225/p225_001.wav` and `txt/p225/p225_001.txt`."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from overtone.data_prep.recordings.recording_names import NameRank, RecordingNames
from overtone.finetune.errors import UserError, format_count

TREES = ("txt", "text", "transcripts")
MICROPHONE = re.compile(r"_mic\d$")
"""VCTK 0.92 has two recordings of each sentence, from two microphones."""


def find_texts_in_trees(recordings: Sequence[Path]) -> dict[Path, Path]:
    """Return recording → its text file in a tree beside the folder of recordings, or beside that of its speaker's folder. Recordings
    without a text are omitted. Raises `UserError` for a text that names several recordings."""
    if not recordings:
        return {}
    folder = recordings[0].parent
    places = [folder.parent / tree for tree in TREES]
    places += [place for tree in TREES for place in _list_namesakes(folder.parent.parent / tree, folder.name)]
    by_name: dict[str, list[Path]] = defaultdict(list)
    for path in recordings:
        by_name[MICROPHONE.sub("", path.stem)].append(path)
    names = RecordingNames(folder, [folder / name for name in by_name])
    found: dict[Path, Path] = {}
    for place in places:
        ranked: list[tuple[NameRank, Path, str]] = []
        for text in sorted(place.glob("*.txt")) if place != folder and place.is_dir() else []:
            matches = [(match.rank, text, match.recording.name) for match in names.find(text.stem)]
            if len(matches) > 1:
                raise UserError(f"{text}: names both {matches[0][2]} and {matches[1][2]}; name it exactly as one of them")
            ranked += matches
        for _, text, name in sorted(ranked):
            for path in by_name[name]:
                found.setdefault(path, text)
    return found


def _list_namesakes(place: Path, name: str) -> list[Path]:
    """Return the folder of a name, or those whose names are that in another Unicode form."""
    if (place / name).is_dir() or not place.is_dir():
        return [place / name]
    return [one for one in sorted(place.iterdir()) if unicodedata.normalize("NFC", one.name) == unicodedata.normalize("NFC", name)]


def find_tree_speaker(recording: Path, text: Path) -> str | None:
    """Return the name of the speaker's folder, if recordings and texts have one folder for each speaker."""
    names = (unicodedata.normalize("NFC", each.parent.name) for each in (recording, text))
    return recording.parent.name if next(names) == next(names) else None


def describe_trees(texts: Iterable[Path]) -> list[str]:
    """Return a note for each tree on how many of its files are used."""
    counts = Counter(next(parent for parent in text.parents if parent.name in TREES) for text in texts)
    return [f"{format_count(count, 'text')} of the folder {tree} used, as in VCTK" for tree, count in sorted(counts.items())]
