"""The user's own transcripts, beside the recordings.

Looked for in this order beside `talk.wav`, and the first that is there is used:
  talk.transcript.json (or talk.json)   [{"start": 0.4, "end": 3.1, "text": "…"}, …], rough times in seconds; or what Whisper writes as JSON
  talk.srt, talk.vtt                    subtitles, also as talk.en.srt
  talk.lab, talk.txt                    the text of a short recording: one clip; or a label track of Audacity or HTK
  metadata.csv, metadata_val.csv        lines `talk|text`, `talk|text|normalised text` (of which the last is used) or `talk|speaker|text`,
                                        as in LJSpeech; in the folder of the recording or, if that is called `wavs` or `wav`, in its parent
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from data_prep import cues, utterances
from data_prep.audio import MASTER_RATE
from data_prep.segment import Unit
from data_prep.table import NAMES, Entry, read_table
from data_prep.utterances import Utterance
from finetune.errors import UserError

UNSPACED = ("chinese", "japanese")
FORMS = (
    "<name>.transcript.json with [{start, end, text}, …], <name>.srt or .vtt, <name>.txt or .lab for a short recording, "
    "or metadata.csv with id|text"
)
SUBTITLES = (".srt", ".vtt")
SUFFIXES = (".transcript.json", ".json", *SUBTITLES, ".lab", ".txt")
"""In the order of precedence: those with times first."""
IN_A_LANGUAGE = re.compile(r"(.+)\.[a-z]{2,3}(?:-[A-Za-z0-9]+)?")
"""`talk.en`, `talk.pt-BR`: how subtitles are named that are there in several languages."""
ABOVE = ("wavs", "wav")
"""Folders whose table lies in the one above: LJSpeech calls it the first, Piper the second."""
SHOWN = 3


class Transcript(BaseModel):
    """What is said in one recording: utterances with times, or one text for all of it."""

    model_config = ConfigDict(frozen=True)

    utterances: tuple[Utterance, ...] = ()
    text: str = ""
    speaker: str | None = None
    """Where a table names one."""
    note: str = ""
    """What of the file is left out."""

    def units(self, length: int, language: str) -> list[Unit]:
        """As units of a master of `length` samples."""
        if self.text:
            return [Unit(text=self.text, start=0, stop=length)]
        space = "" if language in UNSPACED else " "
        return [
            Unit(text=space + said.text.strip(), start=round(said.start * MASTER_RATE), stop=round(said.end * MASTER_RATE))
            for said in self.utterances
        ]


@dataclass(frozen=True)
class Found:
    """The transcripts of many recordings."""

    by_recording: dict[Path, Transcript | None]
    notes: list[str]
    """What a person should know: what is left out, which of several transcripts is used, which have no recording."""


@dataclass(frozen=True)
class _Folder:
    """What one folder offers to its recordings."""

    path: Path
    own: dict[Path, list[Path]]
    """Recording → its transcripts, the one that is used first."""
    alone: list[Path]
    """Transcripts of none of them."""
    lines: dict[str, Entry]
    """Of the table, by id."""


def find(recording: Path) -> Transcript | None:
    """The transcript of a recording, or None. Raises `UserError` that names file and line if it cannot be understood."""
    return find_all([recording]).by_recording[recording]


def find_all(recordings: Sequence[Path]) -> Found:
    """The transcript of each recording, and what is to be said about them. Raises `UserError` like `find`."""
    by_folder: dict[Path, list[Path]] = defaultdict(list)
    for path in recordings:
        by_folder[path.parent].append(path)
    folders = [_look(folder, beside) for folder, beside in by_folder.items()]
    found = {path: _transcript(path, folder) for folder in folders for path in folder.own}
    left_out = [f"{folder.own[path][0]}: {text.note}" for folder in folders for path in folder.own if (text := found[path]) and text.note]
    return Found(found, left_out + [note for folder in folders for note in _notes(folder)])


def _look(folder: Path, recordings: list[Path]) -> _Folder:
    named: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        if suffix := _suffix(path):
            named[path.name[: -len(suffix)]].append(path)
    translated = _translated(named)
    own = {path: sorted(named.get(path.stem, []), key=_rank) or _in_one_language(path, translated) for path in recordings}
    taken = {path for paths in own.values() for path in paths}
    lines = {} if all(own.values()) else _lines(folder)  # not read where nobody needs it: it may be another program's
    return _Folder(folder, own, [path for paths in named.values() for path in paths if path not in taken], lines)


def _transcript(recording: Path, folder: _Folder) -> Transcript | None:
    if folder.own[recording]:
        return _read(folder.own[recording][0])
    line = folder.lines.get(recording.stem)
    return Transcript(text=line.text, speaker=line.speaker) if line else None


def _notes(folder: _Folder) -> list[str]:
    in_table = {name: f"{line.path.name}:{line.line}" for name, line in folder.lines.items()}
    stems = {path.stem for path in folder.own}
    holders = [[path.name for path in own] + [*filter(None, [in_table.get(path.stem)])] for path, own in folder.own.items()]
    several = [f"{used} is used, not {', '.join(others)}" for used, *others in filter(None, holders) if others]
    alone = [path.name for path in folder.alone] + [f"{place} ({name})" for name, place in in_table.items() if name not in stems]
    return [
        *_note(folder, "recordings with several transcripts", several),
        *_note(folder, "transcripts without a recording", alone),
    ]


def _note(folder: _Folder, what: str, names: list[str]) -> list[str]:
    more = ["…"] if len(names) > SHOWN else []
    return [f"{folder.path}: {len(names)} {what}: {'; '.join([*names[:SHOWN], *more])}"] if names else []


def _suffix(path: Path) -> str:
    """That of a transcript, or nothing."""
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), "")


def _rank(path: Path) -> int:
    return SUFFIXES.index(_suffix(path))


def _translated(named: dict[str, list[Path]]) -> dict[str, list[Path]]:
    """`talk` → `talk.en.srt` …"""
    found: dict[str, list[Path]] = defaultdict(list)
    for name, paths in named.items():
        if parts := IN_A_LANGUAGE.fullmatch(name):
            found[parts[1]] += [path for path in paths if _suffix(path) in SUBTITLES]
    return found


def _in_one_language(recording: Path, translated: dict[str, list[Path]]) -> list[Path]:
    paths = translated.get(recording.stem, [])
    if len({path.name[: -len(_suffix(path))] for path in paths}) > 1:
        names = ", ".join(path.name for path in paths)
        raise UserError(f"{recording}: subtitles in several languages ({names}); keep the one in which it is spoken")
    return paths


def _lines(folder: Path) -> dict[str, Entry]:
    """Those of the tables of a folder by id; its own wins over the one above."""
    lines: dict[str, Entry] = {}
    for place in [folder.parent] * (folder.name in ABOVE) + [folder]:
        tables = [read_table(path, _text(path)) for name in NAMES if (path := place / name).is_file()]
        lines |= {name: line for table in reversed(tables) for name, line in table.items()}
    return lines


def _read(path: Path) -> Transcript:
    content = _text(path)
    if _suffix(path).endswith(".json"):
        return Transcript(utterances=utterances.of_json(content, str(path)))
    if _suffix(path) in SUBTITLES:
        found = cues.subtitles(content, path)
        note = f"{found.sounds} cues without speech, as [music], are left out" if found.sounds else ""
        return Transcript(utterances=utterances.of_cues(found, str(path)), note=note)
    if cues.is_label_track(content):
        return Transcript(utterances=utterances.of_cues(cues.labels(content, path), str(path)))
    return _plain(path, content)


def _plain(path: Path, content: str) -> Transcript:
    text = " ".join(content.split())
    if not text:
        raise UserError(f"{path} is empty; write the text of the recording into it or remove it")
    return Transcript(text=text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
