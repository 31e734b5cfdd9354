"""Find and read the user's transcripts next to the recordings: timed JSON, subtitles, label tracks, plain text, LJSpeech metadata.csv.

For `talk.wav`, the first of these files that exists is used:
  talk.transcript.json (or talk.json)   [{"start": 0.4, "end": 3.1, "text": "…"}, …], approximate times in seconds; or Whisper's JSON output
  talk.srt, talk.vtt                    subtitles, also as talk.en.srt
  talk.lab, talk.txt                    the text of a short recording: one clip; or a label track of Audacity or HTK
  metadata.csv, metadata_val.csv        lines `talk|text`, `talk|text|normalised text` (the normalised text is used) or `talk|speaker|text`,
                                        as in LJSpeech; in the folder of the recording or, if that is named `wavs` or `wav`, in its parent
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from data_prep.audio.waveform import MASTER_RATE
from data_prep.recordings import subtitles, timed_transcript
from data_prep.recordings.metadata_csv import NAMES, MetadataLine, parse_table
from data_prep.recordings.timed_transcript import TimedUtterance
from data_prep.segmentation.segment import TextUnit
from finetune.errors import UserError

UNSPACED = ("chinese", "japanese")
FORMS = (
    "<name>.transcript.json with [{start, end, text}, …], <name>.srt or .vtt, <name>.txt or .lab for a short recording, "
    "or metadata.csv with id|text"
)
SUBTITLES = (".srt", ".vtt")
SUFFIXES = (".transcript.json", ".json", *SUBTITLES, ".lab", ".txt")
"""Suffixes in order of precedence: formats with times first."""
IN_A_LANGUAGE = re.compile(r"(.+)\.[a-z]{2,3}(?:-[A-Za-z0-9]+)?")
"""`talk.en`, `talk.pt-BR`: names of subtitles with a language tag."""
ABOVE = ("wavs", "wav")
"""Folders whose metadata.csv is in the parent folder: LJSpeech uses the first name, Piper the second."""
SHOWN = 3


class UserTranscript(BaseModel):
    """Transcript of one recording: utterances with times, or one text for the whole recording."""

    model_config = ConfigDict(frozen=True)

    utterances: tuple[TimedUtterance, ...] = ()
    text: str = ""
    speaker: str | None = None
    """Speaker, if metadata.csv names one."""
    note: str = ""
    """Which parts of the file are ignored."""

    def make_units(self, length: int, language: str) -> list[TextUnit]:
        """Text units with sample positions, for a master of `length` samples."""
        if self.text:
            return [TextUnit(text=self.text, start=0, stop=length)]
        space = "" if language in UNSPACED else " "
        return [
            TextUnit(text=space + one.text.strip(), start=round(one.start * MASTER_RATE), stop=round(one.end * MASTER_RATE))
            for one in self.utterances
        ]


@dataclass(frozen=True)
class FoundTranscripts:
    """The transcripts of many recordings."""

    by_recording: dict[Path, UserTranscript | None]
    notes: list[str]
    """Notes for the user: ignored parts, which of several transcripts is used, transcripts without a recording."""


@dataclass(frozen=True)
class _Folder:
    """Transcripts found in one folder."""

    path: Path
    own: dict[Path, list[Path]]
    """Recording → its transcripts; the first one is used."""
    alone: list[Path]
    """Transcripts without a recording."""
    lines: dict[str, MetadataLine]
    """Lines of metadata.csv by id."""


def find_transcript(recording: Path) -> UserTranscript | None:
    """The transcript of a recording, or None. Raises `UserError` with file and line if it is invalid."""
    return find_transcripts([recording]).by_recording[recording]


def find_transcripts(recordings: Sequence[Path]) -> FoundTranscripts:
    """The transcript of each recording, with notes. Raises `UserError` like `find_transcript`."""
    by_folder: dict[Path, list[Path]] = defaultdict(list)
    for path in recordings:
        by_folder[path.parent].append(path)
    folders = [_scan_folder(folder, beside) for folder, beside in by_folder.items()]
    found = {path: _read_transcript(path, folder) for folder in folders for path in folder.own}
    ignored = [f"{folder.own[path][0]}: {text.note}" for folder in folders for path in folder.own if (text := found[path]) and text.note]
    return FoundTranscripts(found, ignored + [note for folder in folders for note in _list_notes(folder)])


def _scan_folder(folder: Path, recordings: list[Path]) -> _Folder:
    named: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        if suffix := _find_suffix(path):
            named[path.name[: -len(suffix)]].append(path)
    translated = _find_translations(named)
    own = {
        path: sorted(named.get(path.stem, []), key=lambda one: SUFFIXES.index(_find_suffix(one))) or _require_one_language(path, translated)
        for path in recordings
    }
    taken = {path for paths in own.values() for path in paths}
    lines = {} if all(own.values()) else _read_metadata(folder)  # read only if needed: it may belong to another program
    return _Folder(folder, own, [path for paths in named.values() for path in paths if path not in taken], lines)


def _read_transcript(recording: Path, folder: _Folder) -> UserTranscript | None:
    if folder.own[recording]:
        return _parse_file(folder.own[recording][0])
    line = folder.lines.get(recording.stem)
    return UserTranscript(text=line.text, speaker=line.speaker) if line else None


def _list_notes(folder: _Folder) -> list[str]:
    in_table = {name: f"{line.path.name}:{line.line}" for name, line in folder.lines.items()}
    stems = {path.stem for path in folder.own}
    holders = [[path.name for path in own] + [*filter(None, [in_table.get(path.stem)])] for path, own in folder.own.items()]
    several = [f"{used} is used, not {', '.join(others)}" for used, *others in filter(None, holders) if others]
    alone = [path.name for path in folder.alone] + [f"{place} ({name})" for name, place in in_table.items() if name not in stems]
    return [
        *_format_note(folder, "recordings with several transcripts", several),
        *_format_note(folder, "transcripts without a recording", alone),
    ]


def _format_note(folder: _Folder, what: str, names: list[str]) -> list[str]:
    more = ["…"] if len(names) > SHOWN else []
    return [f"{folder.path}: {len(names)} {what}: {'; '.join([*names[:SHOWN], *more])}"] if names else []


def _find_suffix(path: Path) -> str:
    """The transcript suffix of a file name, or an empty string."""
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), "")


def _find_translations(named: dict[str, list[Path]]) -> dict[str, list[Path]]:
    """`talk` → [`talk.en.srt`, …]."""
    found: dict[str, list[Path]] = defaultdict(list)
    for name, paths in named.items():
        if parts := IN_A_LANGUAGE.fullmatch(name):
            found[parts[1]] += [path for path in paths if _find_suffix(path) in SUBTITLES]
    return found


def _require_one_language(recording: Path, translated: dict[str, list[Path]]) -> list[Path]:
    paths = translated.get(recording.stem, [])
    if len({path.name[: -len(_find_suffix(path))] for path in paths}) > 1:
        names = ", ".join(path.name for path in paths)
        raise UserError(f"{recording}: subtitles in several languages ({names}); keep only the spoken language")
    return paths


def _read_metadata(folder: Path) -> dict[str, MetadataLine]:
    """Lines of the metadata tables by id; the folder's own table wins over the one in the parent."""
    lines: dict[str, MetadataLine] = {}
    for place in [folder.parent] * (folder.name in ABOVE) + [folder]:
        tables = [parse_table(path, _read_text(path)) for name in NAMES if (path := place / name).is_file()]
        lines |= {name: line for table in reversed(tables) for name, line in table.items()}
    return lines


def _parse_file(path: Path) -> UserTranscript:
    content = _read_text(path)
    if _find_suffix(path).endswith(".json"):
        return UserTranscript(utterances=timed_transcript.parse_json(content, str(path)))
    if _find_suffix(path) in SUBTITLES:
        found = subtitles.parse_subtitles(content, path)
        note = f"{found.sounds} cues without speech, such as [music], are ignored" if found.sounds else ""
        return UserTranscript(utterances=timed_transcript.convert_cues(found, str(path)), note=note)
    if subtitles.is_label_track(content):
        return UserTranscript(utterances=timed_transcript.convert_cues(subtitles.parse_labels(content, path), str(path)))
    return _parse_plain_text(path, content)


def _parse_plain_text(path: Path, content: str) -> UserTranscript:
    text = " ".join(content.split())
    if not text:
        raise UserError(f"{path} is empty; add the text of the recording or remove the file")
    return UserTranscript(text=text)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
