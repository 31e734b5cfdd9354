"""Find and read the user's transcripts: files beside the recordings, tables of many recordings, and trees of texts.

For `talk.wav`, the first of these files that exists is used: talk.transcript.json (or talk.json)   [{"start": 0.4, "end": 3.1, "text":
"…"}, …], approximate times in seconds; or the JSON of Whisper, whisperX, whisper.cpp or a transformers pipeline talk.srt, talk.vtt,
talk.sbv          subtitles, also as talk.en.srt; rolling captions are read once talk.ass, talk.ssa, talk.ttml, .dfxp  subtitles of other
programs talk.tsv                              Whisper's TSV output: start and end in milliseconds, text talk.TextGrid intervals of Praat
talk.lab, talk.txt                    the text of a short recording: one clip; or a label track of Audacity or HTK metadata.csv,
metadata_val.csv        lines `talk|text`, `talk|text|normalised text` (the normalised text is used) or `talk|speaker|text`, as in LJSpeech
any .csv, .tsv, .jsonl                with named columns for the file and its text (`named_column_tables`); Common Voice, AudioFolder any
.list, .trans.txt                 of GPT-SoVITS and LibriSpeech (`transcript_list_parsers`) txt/SPEAKER/talk.txt in a tree beside that of
the recordings, as in VCTK (`parallel_transcript_folders`) Unspoken text is left out of every transcript, and counted (`unspoken_text`). A
table is looked up in the folder of the recording, then in the folders above it up to the one that was given; and above a folder that is
named `wavs`, `wav`, `clips` or `audio`. `recording_names` has the rules by which names, also of files (`talk.mp3.srt`), are matched to
recordings.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.recordings import (
    named_column_tables,
    styled_subtitles,
    subtitles,
    textgrid,
    timed_transcript,
    transcript_json,
    transcript_list_parsers,
    transcript_table_lookup,
)
from overtone.data_prep.recordings.audio_datasets import ORIGIN
from overtone.data_prep.recordings.ljspeech_metadata import MetadataLine
from overtone.data_prep.recordings.parallel_transcript_folders import describe_trees, find_texts_in_trees, find_tree_speaker
from overtone.data_prep.recordings.recording_names import (
    TRIVIAL,
    RecordingMatch,
    RecordingNames,
    are_one_name,
    format_rules,
    has_sound_ending,
)
from overtone.data_prep.recordings.removed_text import RemovedKind, RemovedText
from overtone.data_prep.recordings.speaker_labels import list_speakers, name_speaker
from overtone.data_prep.recordings.text_encoding import read_text
from overtone.data_prep.recordings.timed_cues import ParsedCues
from overtone.data_prep.recordings.timed_transcript import TimedUtterance
from overtone.data_prep.recordings.transcript_table_lookup import TranscriptTables
from overtone.data_prep.recordings.unspoken_text import StrippedText, read_spoken_texts
from overtone.data_prep.segmentation.clip_segmentation import TextUnit
from overtone.finetune.errors import UserError, format_count

UNSPACED = ("chinese", "japanese")
FORMS = (
    "<name>.transcript.json with [{start, end, text}, …], <name>.json of Whisper or whisper.cpp, <name>.srt, .vtt, .sbv, .ass, .ssa, .ttml "
    "or .dfxp, <name>.tsv of Whisper, <name>.TextGrid of Praat, <name>.txt or .lab for a short recording, metadata.csv with "
    "id|text, a .csv, .tsv or .jsonl with columns like file_name and text, a .list of GPT-SoVITS, a .trans.txt of LibriSpeech, "
    "or txt/SPEAKER/<name>.txt"
)
SUBTITLES = (".srt", ".vtt", ".sbv", *styled_subtitles.SUFFIXES)
SUFFIXES = (".transcript.json", ".json", *SUBTITLES, ".tsv", textgrid.SUFFIX, ".lab", ".txt")
"""Suffixes in order of precedence: formats with times first."""
NEAR_MISSES = (".srv3", ".json3", ".lrc", ".sub", ".smi", ".eaf", ".docx", ".doc", ".pdf")
"""Suffixes of files that may hold a transcript and are not read; named where one was expected."""
IN_A_LANGUAGE = re.compile(r"(.+?)\.((?:[a-z]{2,3}|[A-Z]{2})(?:[-_][A-Za-z0-9]+)?)(?:\.(?:cc|sdh))?")
"""`talk.en`, `talk.EN`, `talk.pt-BR`, `talk.en.sdh`: names of subtitles with a language tag."""
ORIGINAL = "-orig"
"""End of the language tag of YouTube's captions in the language of the recording."""
DESCRIPTION = ".info.json"
"""Extension of the description that yt-dlp writes beside a recording."""
ABOVE = ("wavs", "wav", "clips", "audio")
"""Folders whose tables are in the parent folder: those of LJSpeech, Piper and Common Voice."""
DOCUMENT = re.compile(r"\s*(?:\{\\rtf|<\?xml|<!doctype|<html|<head|<body|%PDF-|\{\s*\"|\[\s*\{)", re.IGNORECASE)
"""The beginning of RTF, HTML, XML, PDF and JSON, whose markup would be read as text."""
SHOWN = 3


class UserTranscript(BaseModel):
    """Transcript of one recording: utterances with times, or one text for the whole recording."""

    model_config = ConfigDict(frozen=True)

    utterances: tuple[TimedUtterance, ...] = ()
    text: str = ""
    speaker: str | None = None
    """Speaker, if a table, a folder of texts or the transcript itself names one."""
    language: str | None = None
    """Language or locale as a table names it, for example `de` or `pt-BR`."""
    words: bool = False
    """True if the utterances are single words, whose ends are no better places to cut than other pauses."""
    note: str = ""
    """Note on the parts of the file that are ignored."""

    def list_texts(self) -> list[str]:
        """Return the texts of the utterances, or the one text."""
        return [self.text] if self.text else [one.text for one in self.utterances]

    def make_units(self, length: int, language: str) -> list[TextUnit]:
        """Return the text units with sample positions, for a master of `length` samples."""
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
    """Notes for the user: ignored parts, assumed encodings, which of several transcripts is used."""
    unused: list[str]
    """Notes about transcripts without a recording."""
    near_misses: list[Path]
    """Files that look like transcripts of recordings without one."""
    removed: dict[str, RemovedKind]
    """Text that was removed because nobody speaks it."""


@dataclass(frozen=True)
class _WholeText:
    """The unchanged text of a whole recording."""

    place: str
    """File, or file and line."""
    text: str
    table: Path | None = None
    """The table with its line; None: a file of its own. A beginning that is repeated in a table, or in all files, may be a label."""
    speaker: str | None = None
    language: str | None = None
    note: str = ""


@dataclass
class _Folder:
    """Transcripts found in one folder of recordings."""

    path: Path
    recordings: list[Path]
    own: dict[Path, list[Path]]
    """Recording → the transcripts named after it; the first one is used."""
    alone: list[Path]
    """Transcripts that are named after no recording."""
    near_misses: list[Path]
    rules: Counter[str]
    """Rule by which the name of a transcript was found → number of transcripts."""
    tables: list[TranscriptTables] = field(default_factory=list)
    """Nearest first; only if some recording has no transcript of its own, since they may belong to another program."""
    of_trees: dict[Path, Path] = field(default_factory=dict)
    """Recording without any other transcript → its file in a tree of texts."""

    def find_lines(self, recording: Path) -> list[MetadataLine]:
        """Return the lines of tables for a recording, in order of precedence; a table that only repeats the text of the first is left
        out."""
        lines = [line for tables in self.tables for line in tables.find_lines(recording)]
        return lines[:1] + [line for line in lines[1:] if line.text != lines[0].text]

    def is_exact(self, recording: Path, line: MetadataLine) -> bool:
        """Return whether a line of a table names a recording as its file is named."""
        return any(one is line and rule in TRIVIAL for tables in self.tables for one, rule in tables.matched.get(recording, ()))

    def list_without_own(self) -> list[Path]:
        return [path for path in self.recordings if not self.own[path]]


def find_transcript(recording: Path) -> UserTranscript | None:
    """Return the transcript of a recording, or None. Raises `UserError` with file and line if it is invalid."""
    return find_transcripts([recording]).by_recording[recording]


def find_transcripts(recordings: Sequence[Path], root: Path | None = None) -> FoundTranscripts:
    """Return the transcript of each recording, with notes. `root`: the folder that was given, up to which tables are looked up; None: each
    recording's own folder. Raises `UserError` like `find_transcript`."""
    by_folder: dict[Path, list[Path]] = defaultdict(list)
    for path in recordings:
        by_folder[path.parent].append(path)
    known: dict[Path, TranscriptTables] = {}
    folders = [_scan_folder(folder, beside, root, known) for folder, beside in by_folder.items()]
    present: dict[Path, list[Path]] = defaultdict(list)
    for folder in folders:
        for tables in folder.tables:
            present[tables.folder] += folder.own if tables.lines else []
    for place, paths in present.items():
        known[place].match(RecordingNames(place, paths))
    _require_unambiguous_lines(folders)
    for folder in folders:
        folder.of_trees = find_texts_in_trees([path for path in folder.list_without_own() if not folder.find_lines(path)])
    removed = RemovedText()
    read = {path: _read_transcript(path, folder, removed) for folder in folders for path in folder.recordings}
    found, decisions = _strip_whole_texts(read, removed)
    without = {path for path, text in read.items() if text is None}
    incomplete = {path.parent for path in without}
    return FoundTranscripts(
        found,
        [*(text.note for text in found.values() if text and text.note), *decisions, *_list_notes(folders, known)],
        _list_unused(folders, known, without),
        [path for folder in folders if folder.path in incomplete for path in [*folder.alone, *folder.near_misses]],
        removed.list_kinds(),
    )


def _list_notes(folders: list[_Folder], known: dict[Path, TranscriptTables]) -> list[str]:
    """Return the notes on how transcripts were read and found."""
    without_own = {path for folder in folders for path in folder.list_without_own()}
    return [
        *(note for tables in known.values() for note in [*tables.notes, *tables.describe_rules(without_own)]),
        *describe_trees([text for folder in folders for text in folder.of_trees.values()]),
        *(f"{folder.path}: {format_rules('transcript', folder.rules)}" for folder in folders if not TRIVIAL.issuperset(folder.rules)),
        *(note for folder in folders for note in _list_several(folder)),
    ]


def _scan_folder(folder: Path, recordings: list[Path], root: Path | None, known: dict[Path, TranscriptTables]) -> _Folder:
    files = sorted(folder.iterdir() if folder.is_dir() else ())
    present = sorted({*recordings, *(path for path in files if has_sound_ending(path.name))})
    names = RecordingNames(folder, present)
    near, alone, given = list[Path](), list[Path](), set(recordings)
    named: dict[Path, list[tuple[Path, RecordingMatch]]] = {path: [] for path in present}
    for path in files:
        if path.suffix.lower() in NEAR_MISSES:
            near.append(path)
        elif path.name == ORIGIN and not names.find(path.stem):
            continue  # a dataset whose rows were written here
        elif (suffix := _find_suffix(path)) and (
            (matches := _find_named_recordings(path, suffix, names)) or not named_column_tables.is_column_table(path)
        ):
            alone += [] if matches else [path]
            if any(match.recording in given for match in matches):
                _require_one_recording(path, matches)
            for match in matches:
                named[match.recording].append((path, match))
    own = {path: _choose_own(path, found) for path, found in named.items()}
    rules = Counter(match.rule for path in recordings for text, match in named[path] if own[path] and text == own[path][0])
    taken = {path for paths in own.values() for path in paths}
    alone += dict.fromkeys(text for found in named.values() for text, _ in found if text not in taken)
    above = [parent for parent in folder.parents if root is not None and parent.is_relative_to(root)]
    nearest = [folder, *(above or [folder.parent] * (folder.name in ABOVE))]  # folders whose tables may name the recordings
    tables = [_read_tables(place, root, known) for place in nearest] if not all(map(own.get, recordings)) else []
    return _Folder(path=folder, recordings=recordings, own=own, alone=sorted(alone), near_misses=near, rules=rules, tables=tables)


def _find_named_recordings(path: Path, suffix: str, names: RecordingNames) -> list[RecordingMatch]:
    """Return the recordings that a transcript is named after: `talk.srt`, `talk.mp3.srt`, `talk.en.srt`."""
    base = path.name[: -len(suffix)]
    found = names.find(base)
    if not found and suffix in SUBTITLES and (parts := IN_A_LANGUAGE.fullmatch(base)):
        found = names.find(parts[1])
    return found


def _require_one_recording(path: Path, matches: list[RecordingMatch]) -> None:
    """Raises `UserError` for a transcript of several recordings, unless they differ in their endings only and are named as it is."""
    first = matches[0].recording
    for match in matches[1:]:
        if match.rank.changed or not are_one_name(match.recording, first):
            raise UserError(f"{path}: names both {first.name} and {match.recording.name}; name it exactly as one of them")


def _choose_own(recording: Path, named: list[tuple[Path, RecordingMatch]]) -> list[Path]:
    """Return the transcripts named after a recording in order of precedence; those with a language in their names only if there are no
    others. Raises `UserError` for subtitles in several languages."""
    ranks = {path: match.rank for path, match in named}
    translated = [path for path in ranks if _find_language(path, recording)]
    plain = sorted(ranks.keys() - set(translated), key=lambda path: (SUFFIXES.index(_find_suffix(path)), ranks[path], path))
    return plain or _require_one_language(recording, translated)


def _read_tables(folder: Path, root: Path | None, known: dict[Path, TranscriptTables]) -> TranscriptTables:
    """Return the tables of a folder, each read once."""
    if folder not in known:
        known[folder] = transcript_table_lookup.read_tables(
            folder, [] if folder != root else sorted(folder.rglob(f"*/*{transcript_list_parsers.GPT_SOVITS}"))
        )
    return known[folder]


def _read_transcript(recording: Path, folder: _Folder, removed: RemovedText) -> UserTranscript | _WholeText | None:
    if folder.own[recording]:
        return _parse_file(folder.own[recording][0], removed)
    if lines := folder.find_lines(recording):
        first = lines[0]
        return _WholeText(f"{first.path}:{first.line}", first.text, first.path, first.speaker, first.language)
    if text := folder.of_trees.get(recording):
        speaker = find_tree_speaker(recording, text)
        parsed = _parse_file(text, removed)
        return parsed.model_copy(update={"speaker": speaker}) if isinstance(parsed, UserTranscript) else replace(parsed, speaker=speaker)
    return None


def _strip_whole_texts(
    read: Mapping[Path, UserTranscript | _WholeText | None], removed: RemovedText
) -> tuple[dict[Path, UserTranscript | None], list[str]]:
    """Return (the transcripts without what nobody speaks, what was decided about ambiguous texts). None for a recording in which nobody
    speaks, or whose text lacks words."""
    found: dict[Path, UserTranscript | None] = {path: one if isinstance(one, UserTranscript) else None for path, one in read.items()}
    by_table: dict[Path | None, list[tuple[Path, _WholeText]]] = defaultdict(list)
    for path, one in read.items():
        if isinstance(one, _WholeText):
            by_table[one.table].append((path, one))
    notes = []
    for table, texts in by_table.items():
        spoken, decisions = read_spoken_texts([whole.text for _, whole in texts], removed, by_line=True)
        notes += [f"{table or 'texts of whole recordings'}: {'; '.join(decisions)}"] if decisions else []
        for (path, whole), said in zip(texts, spoken, strict=True):
            found[path] = _make_whole_transcript(whole, said, removed)
    unused = [one.place for path, one in read.items() if isinstance(one, _WholeText) and found[path] is None]
    if unused:
        shown = ", ".join([*unused[:SHOWN], *["…"] * (len(unused) > SHOWN)])
        notes.append(f"{format_count(len(unused), 'text')} not used, since nobody speaks there, or words are missing: {shown}")
    return found, notes


def _make_whole_transcript(whole: _WholeText, spoken: StrippedText, removed: RemovedText) -> UserTranscript | None:
    speakers = list_speakers(spoken.speakers)
    if len(speakers) > 1:
        timed_transcript.refuse_several_speakers(speakers, whole.place)
    if spoken.is_incomplete and "\n" not in whole.text.strip():
        removed.add(timed_transcript.INCOMPLETE, whole.text)
        return None
    if not spoken.text:
        removed.add(timed_transcript.SOUNDS, whole.text)
        return None
    changes = f"{whole.place}: {format_count(spoken.changes, 'change')} of the speaker (>>)" if spoken.changes else ""
    return UserTranscript(
        text=spoken.text,
        speaker=whole.speaker or name_speaker(speakers),
        language=whole.language,
        note="; ".join(filter(None, [whole.note, changes])),
    )


def _require_unambiguous_lines(folders: list[_Folder]) -> None:
    """Raises `UserError` for a line that names several recordings; it is the text of only one of them."""
    named: dict[tuple[Path, int], Path] = {}
    for folder in folders:
        for path in folder.list_without_own():
            if lines := folder.find_lines(path):
                first = named.setdefault((lines[0].path, lines[0].line), path)
                if path != first and not (are_one_name(first, path) and folder.is_exact(path, lines[0])):
                    raise UserError(
                        f"{lines[0].path}:{lines[0].line}: names both {first} and {path}; write the path of the recording there"
                    )


def _list_several(folder: _Folder) -> list[str]:
    """Return a note on recordings with several transcripts."""
    holders = [
        [path.name for path in own] + [f"{line.path.name}:{line.line}" for line in folder.find_lines(path)]
        for path, own in ((path, folder.own[path]) for path in folder.recordings)
    ]
    several = [f"{used} is used, not {', '.join(others)}" for used, *others in filter(None, holders) if others]
    return _format_note(folder.path, "recordings with several transcripts", several)


def _list_unused(folders: list[_Folder], known: dict[Path, TranscriptTables], without: set[Path]) -> list[str]:
    """Return a note for each folder on its transcripts without a recording. `without`: recordings without a transcript, some of which may
    be meant."""
    alone = {folder.path: [path.name for path in folder.alone] for folder in folders}
    for place, tables in known.items():
        names = alone.setdefault(place, [])
        for name, line in tables.list_unused():
            near = tables.find_nearest(name, without) if len(names) < SHOWN else ""
            names.append(f"{line.path.name}:{line.line} ({name}{near and '; the nearest file is '}{near})")
    return [note for place, names in alone.items() for note in _format_note(place, "transcripts without a recording", names)]


def _format_note(folder: Path, what: str, names: list[str]) -> list[str]:
    more = ["…"] if len(names) > SHOWN else []
    return [f"{folder}: {len(names)} {what}: {'; '.join([*names[:SHOWN], *more])}"] if names else []


def _find_suffix(path: Path) -> str:
    """Return the transcript suffix of a file name, or an empty string."""
    if transcript_list_parsers.is_transcript_list(path) or path.name.lower().endswith(DESCRIPTION):
        return ""
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), "")


def _find_language(path: Path, recording: Path) -> str:
    """Return the language tag in the name of subtitles, which the name of the recording does not have; empty without one."""
    suffix = _find_suffix(path)
    parts = IN_A_LANGUAGE.fullmatch(path.name[: -len(suffix)]) if suffix in SUBTITLES else None
    if parts is None or has_sound_ending(parts[0]) or RecordingNames(recording.parent, [recording]).find(parts[0]):
        return ""
    return parts[2]


def _require_one_language(recording: Path, paths: list[Path]) -> list[Path]:
    original = [path for path in paths if _find_language(path, recording).endswith(ORIGINAL)]
    if original:  # YouTube: the captions in the language of the recording, beside their translations
        return original
    if len({_find_language(path, recording) for path in paths}) > 1:
        names = ", ".join(path.name for path in paths)
        raise UserError(f"{recording}: subtitles in several languages ({names}); keep only the spoken language")
    return paths


def _parse_file(path: Path, removed: RemovedText) -> UserTranscript | _WholeText:
    content, note = read_text(path)
    parsed = _parse_cues(path, content)
    if parsed is None:
        if not content.strip():
            raise UserError(f"{path} is empty; add the text of the recording or remove the file")
        return _WholeText(str(path), content, note=note)
    timed = timed_transcript.make_transcript(parsed, str(path), removed)
    described = f"{path}: {'; '.join(timed.notes)}" if timed.notes else ""
    return UserTranscript(
        utterances=timed.utterances, speaker=timed.speaker, words=timed.words, note="; ".join(filter(None, [note, described]))
    )


def _parse_cues(path: Path, content: str) -> ParsedCues | None:
    """Return the cues of a file; None for a text without times."""
    suffix = _find_suffix(path)
    if suffix.endswith(".json"):
        return transcript_json.parse_json(content, str(path))
    if suffix == ".tsv":
        return transcript_json.parse_tsv(content, str(path))
    if suffix in styled_subtitles.SUFFIXES:
        return styled_subtitles.parse_styled(content, path)
    if suffix in SUBTITLES:
        return subtitles.parse_subtitles(content, path)
    if suffix == textgrid.SUFFIX:
        return textgrid.parse_textgrid(content, path)
    if subtitles.is_subtitle_text(content):
        return subtitles.parse_subtitles(content, path)
    if subtitles.is_label_track(content):
        return subtitles.parse_labels(content, path)
    if found := DOCUMENT.match(content):
        raise UserError(f"{path}:1: not a plain text ({' '.join(found[0].split())!r}); save it as text, or give subtitles")
    return None
