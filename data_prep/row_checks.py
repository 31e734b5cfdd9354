"""What can be wrong with the rows of a voice dataset: one function per question, from rows and sounds to problems."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from data_prep.audio import MASTER_RATE
from data_prep.codec import CODEBOOKS, frames_of
from data_prep.formats import AudioError
from data_prep.lines import Line
from data_prep.manifest import AUTO, LANGUAGES, TRAIN, VAL, Row
from data_prep.sounds import Sound

CODEBOOK = 2048
"""Codes of each codebook: `codebook_size` in the tokenizer's config of every released Qwen3-TTS 12 Hz model."""
DURATION_TOLERANCE = 0.02
"""Seconds by which a row may miss its clip: rows round, and MP3 adds padding that its header does not always tell."""

PROBLEMS = {
    "not_json": "lines that are not a JSON object in UTF-8",
    "bad_row": "rows without audio or text, or with a field of another kind",
    "outside": "paths that lead out of the folder",
    "no_file": "clips that do not exist",
    "unreadable": "clips that cannot be decoded",
    "empty": "clips without samples",
    "nan": "clips with samples that are not numbers",
    "silent": "clips without any signal",
    "truncated": "clips shorter than their file declares",
    "duration": "rows whose duration is not that of the clip",
    "language": "languages that the model does not know",
    "ref_audio": "reference clips that cannot be used",
    "codes": "audio_codes that do not fit the clip",
    "other_codec": "codes that another tokenizer made than that of --model",
    "codes_missing": "rows without audio_codes beside rows with them",
    "same_id": "ids that an earlier row has",
    "same_clip": "clips that an earlier row has, by their bytes",
    "in_both_splits": "clips to validate on that are also trained on",
    "overlap": "stretches of a recording to validate on that are also trained on",
    "unknown_speaker": "speakers to validate on who are not trained",
}
"""Kind → what its rows are. Training refuses them, or its result suffers."""
NOTES = {
    "rate": f"clips not at {MASTER_RATE} Hz: they are resampled, once, where they are used",
    "channels": "clips with several channels: they are mixed to one where they are used",
    "ref_rate": f"reference clips not at {MASTER_RATE} Hz: the official script refuses them; export --as qwen converts them",
    "no_speaker": "rows that name no speaker: say --speaker NAME where they are used",
    "same_recording": "rows to validate on from recordings that are also trained on, from other stretches",
}
"""Kind → what its rows are. They can be used as they are."""


class Problem(NamedTuple):
    """One thing about one line."""

    kind: str
    place: str
    detail: str


@dataclass(frozen=True)
class Facts:
    """What is kept of a row once it was looked at: all rows together must fit into memory."""

    place: str
    validates: bool
    id: str | None
    audio: str
    speaker: str | None
    language: str
    source: str | None
    start: float | None
    end: float | None
    sound: Sound | None
    """None if it cannot be used."""
    coded: bool


def facts(line: Line, row: Row, sound: Sound | AudioError | None) -> Facts:
    """Of one row."""
    usable = sound if isinstance(sound, Sound) else None
    name = line.manifest.name
    validates = name == VAL if name in (TRAIN, VAL) else row.split == "val"
    coded = row.audio_codes is not None
    return Facts(line.place, validates, row.id, row.audio, row.speaker, row.language, row.source, row.start, row.end, usable, coded)


def about_clip(line: Line, row: Row, sound: Sound | AudioError, codebook: int) -> Iterator[Problem]:
    """What its sound says about a row. `codebook`: how many codes there are."""
    if isinstance(sound, AudioError):
        yield Problem(sound.reason if sound.reason in PROBLEMS else "unreadable", line.place, f"{row.audio}: {sound.detail}")
        return
    if sound.rate != MASTER_RATE:
        yield Problem("rate", line.place, f"{row.audio}: {sound.rate} Hz")
    if sound.channels > 1:
        yield Problem("channels", line.place, f"{row.audio}: {sound.channels} channels")
    if row.duration is not None and not abs(row.duration - sound.seconds) <= DURATION_TOLERANCE:  # NaN too
        yield Problem("duration", line.place, f"{row.audio}: the row says {row.duration:.3f} s, the clip lasts {sound.seconds:.3f} s")
    if row.audio_codes is not None and (fault := fault_of(row.audio_codes, sound.length, codebook)):
        yield Problem("codes", line.place, fault)


def fault_of(codes: Sequence[Sequence[int]], samples: int, codebook: int) -> str:
    """What is wrong with [T][16] codes of a clip of `samples` at 24 kHz; empty if nothing is."""
    wrong = next((t for t, frame in enumerate(codes) if len(frame) != CODEBOOKS), None)
    if wrong is not None:
        return f"frame {wrong} has {len(codes[wrong])} codes, {CODEBOOKS} are expected"
    if len(codes) != frames_of(samples):
        return f"{len(codes)} frames for {samples} samples at {MASTER_RATE} Hz, {frames_of(samples)} are expected"
    low, high = min(map(min, codes)), max(map(max, codes))
    return "" if low >= 0 and high < codebook else f"codes from {low} to {high}, 0 to {codebook - 1} are expected"


def about_reference(line: Line, row: Row, sound: Sound | AudioError) -> Iterator[Problem]:
    """What the sound of its reference clip says about a row."""
    if isinstance(sound, AudioError):
        yield Problem("ref_audio", line.place, f"{row.ref_audio}: {sound.reason}: {sound.detail}")
    elif sound.rate != MASTER_RATE:
        yield Problem("ref_rate", line.place, f"{row.ref_audio}: {sound.rate} Hz")


def about_words(line: Line, row: Row) -> Iterator[Problem]:
    """What can be said about a row without hearing it."""
    name = row.language.strip().lower()
    if name and name != AUTO and name not in LANGUAGES and name not in LANGUAGES.values():
        yield Problem("language", line.place, f"{row.language!r}; known are {', '.join(LANGUAGES.values())}, or {AUTO}")
    if not row.speaker:
        yield Problem("no_speaker", line.place, row.audio)


def about_all(rows: Sequence[Facts]) -> Iterator[Problem]:
    """What is wrong with rows beside each other."""
    yield from _repeated(rows, "same_id", lambda row: row.id)
    yield from _repeated(rows, "same_clip", lambda row: (row.validates, row.sound.digest) if row.sound else None)
    yield from _in_both_splits(rows)
    yield from _recordings_in_both_splits(rows)
    trained = {row.speaker for row in rows if not row.validates}
    if any(not row.validates for row in rows):
        yield from (Problem("unknown_speaker", row.place, str(row.speaker)) for row in rows if row.validates and row.speaker not in trained)
    if any(row.coded for row in rows):
        yield from (Problem("codes_missing", row.place, row.audio) for row in rows if not row.coded)


def _repeated(rows: Sequence[Facts], kind: str, key: Callable[[Facts], Hashable]) -> Iterator[Problem]:
    first: dict[Hashable, Facts] = {}
    for row in rows:
        if (value := key(row)) is not None and (earlier := first.setdefault(value, row)) is not row:
            yield Problem(kind, row.place, f"{row.id if kind == 'same_id' else row.audio}: as in {earlier.place}")


def _in_both_splits(rows: Sequence[Facts]) -> Iterator[Problem]:
    trained = {row.sound.digest: row for row in rows if row.sound and not row.validates}
    for row in rows:
        if row.validates and row.sound and (twin := trained.get(row.sound.digest)):
            yield Problem("in_both_splits", row.place, f"{row.audio}: as in {twin.place}")


def _recordings_in_both_splits(rows: Sequence[Facts]) -> Iterator[Problem]:
    """The same second on both sides is a leak. The same recording is what one does who has only one."""
    of_source: dict[str, list[Facts]] = defaultdict(list)
    for row in rows:
        if row.source is not None:
            of_source[row.source].append(row)
    for source, beside in of_source.items():
        if len({row.validates for row in beside}) == 2:
            yield from _overlaps(source, beside)
            yield from (Problem("same_recording", row.place, source) for row in beside if row.validates)


def _overlaps(source: str, beside: list[Facts]) -> Iterator[Problem]:
    """In the order of their starts, each against the one of the other side that has lasted longest so far."""
    timed = [(row.start, row.end, row) for row in beside if row.start is not None and row.end is not None]
    longest: dict[bool, tuple[float, Facts]] = {}
    for start, end, row in sorted(timed, key=lambda one: one[:2]):
        until, other = longest.get(not row.validates, (start, row))
        if start < until:
            yield Problem("overlap", (row if row.validates else other).place, f"{source} from {start} s: {row.place} and {other.place}")
        if end > longest.get(row.validates, (-1.0, row))[0]:
            longest[row.validates] = end, row
