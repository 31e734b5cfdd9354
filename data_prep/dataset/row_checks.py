"""Checks of `overtone check-dataset`: rows of a voice dataset and their decoded clips in, problems out; one function per check."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from overtone.data_prep.audio.stream_reader import AudioError
from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.audio_codecs.interface import CodeFormat
from overtone.data_prep.dataset.clip_audio_checks import AudioInfo
from overtone.data_prep.dataset.manifest_line_reader import ManifestLine
from overtone.data_prep.manifest import AUTO, LANGUAGES, TRAIN, VAL, ManifestRow
from overtone.data_prep.recordings.invisible_characters import remove_invisible

DURATION_TOLERANCE = 0.02
"""Tolerance of `duration` in seconds: rows are rounded, and MP3 adds padding that its header may not declare."""

PROBLEMS = {
    "not_json": ("line", "without a JSON object in UTF-8"),
    "bad_row": ("row", "without audio or text, or with a wrong field type"),
    "outside": ("path", "outside of the folder"),
    "no_file": ("clip", "without a file"),
    "unreadable": ("clip", "that cannot be decoded"),
    "empty": ("clip", "without samples"),
    "nan": ("clip", "with NaN or Inf samples"),
    "silent": ("clip", "without any signal"),
    "truncated": ("clip", "shorter than the file declares"),
    "ambiguous": ("path", "that fits several files"),
    "duration": ("row", "with another duration than the clip"),
    "language": ("language", "that the model does not support"),
    "ref_audio": ("reference clip", "that cannot be used"),
    "codes": ("row", "with audio_codes that do not fit the clip"),
    "other_codec": ("code store", "of another codec than that of --model"),
    "codes_missing": ("row", "without audio_codes in a dataset that has them"),
    "same_id": ("row", "with the id of an earlier row"),
    "same_clip": ("clip", "identical to that of an earlier row"),
    "in_both_splits": ("validation clip", "also in the training set"),
    "overlap": ("validation clip", "with an overlap with training clips of the same recording"),
    "unknown_speaker": ("validation speaker", "without training clips"),
}
"""Kind of problem → (noun, what follows it, for one and for many). Training rejects such rows, or its result suffers."""
NOTES = {
    "rate": ("clip", "not at {sample_rate} Hz, resampled when used"),
    "channels": ("clip", "with several channels: their mean is used, or the clean one beside noise or silence"),
    "ref_rate": ("reference clip", f"not at {MASTER_RATE} Hz, rejected by the official script; export-dataset --as qwen converts them"),
    "assumed_codec": ("dataset", "whose codec is not recorded"),
    "invisible": ("row", "whose text has invisible characters; `overtone codes` removes them"),
    "no_speaker": ("row", "without a speaker: use --speaker NAME in later commands"),
    "renamed": ("path", "found in another Unicode form, in another case or with other separators"),
    "same_recording": ("validation row", "from a recording that also has training rows, from other parts"),
}
"""Kind of note → (noun, what follows it), with `{sample_rate}` of the codec. Such rows can be used as they are."""


class Problem(NamedTuple):
    """One problem or note about one line."""

    kind: str
    place: str
    detail: str


@dataclass(frozen=True)
class RowFacts:
    """The fields of a checked row that are kept for checks across rows; all rows must fit into memory."""

    place: str
    validates: bool
    id: str | None
    audio: str
    speaker: str | None
    language: str
    source: str | None
    start: float | None
    end: float | None
    sound: AudioInfo | None
    """None if the clip is unusable."""
    coded: bool


def collect_facts(line: ManifestLine, row: ManifestRow, sound: AudioInfo | AudioError | None) -> RowFacts:
    """Return the kept fields of one row."""
    usable = sound if isinstance(sound, AudioInfo) else None
    name = line.manifest.name
    validates = name == VAL if name in (TRAIN, VAL) else row.split == "val"
    coded = row.audio_codes is not None
    return RowFacts(
        place=line.place,
        validates=validates,
        id=row.id,
        audio=row.audio,
        speaker=row.speaker,
        language=row.language,
        source=row.source,
        start=row.start,
        end=row.end,
        sound=usable,
        coded=coded,
    )


def check_clip(line: ManifestLine, row: ManifestRow, sound: AudioInfo | AudioError, codes: CodeFormat) -> Iterator[Problem]:
    """Yield the problems of a row's clip. `codes`: the format that its codes should have."""
    if isinstance(sound, AudioError):
        yield Problem(sound.reason if sound.reason in PROBLEMS else "unreadable", line.place, f"{row.audio}: {sound.detail}")
        return
    if sound.rate != codes.sample_rate:
        yield Problem("rate", line.place, f"{row.audio}: {sound.rate} Hz")
    if sound.channels > 1:
        yield Problem("channels", line.place, f"{row.audio}: {sound.channels} channels")
    if row.duration is not None and not abs(row.duration - sound.seconds) <= DURATION_TOLERANCE:  # NaN too
        yield Problem("duration", line.place, f"{row.audio}: the row says {row.duration:.3f} s, the clip lasts {sound.seconds:.3f} s")
    if row.audio_codes is not None and (fault := find_codes_fault(row.audio_codes, sound.count_samples(codes.sample_rate), codes)):
        yield Problem("codes", line.place, fault)


def find_codes_fault(codes: Sequence[Sequence[int]], samples: int, wanted: CodeFormat) -> str:
    """Describe what is wrong with the codes [frames, codebooks] of a clip of `samples` at `wanted.sample_rate`; empty if valid."""
    wrong = next((t for t, frame in enumerate(codes) if len(frame) != wanted.codebooks), None)
    if wrong is not None:
        return f"frame {wrong} has {len(codes[wrong])} codes, expected {wanted.codebooks}"
    if len(codes) != (frames := wanted.count_frames(samples)):
        return f"{len(codes)} frames for {samples} samples at {wanted.sample_rate} Hz, expected {frames}"
    low, high = min(map(min, codes)), max(map(max, codes))
    return "" if low >= 0 and high < wanted.codebook_size else f"codes from {low} to {high}, expected 0 to {wanted.codebook_size - 1}"


def check_reference(line: ManifestLine, row: ManifestRow, sound: AudioInfo | AudioError) -> Iterator[Problem]:
    """Yield the problems of a row's reference clip."""
    if isinstance(sound, AudioError):
        yield Problem("ref_audio", line.place, f"{row.ref_audio}: {sound.reason}: {sound.detail}")
    elif sound.rate != MASTER_RATE:
        yield Problem("ref_rate", line.place, f"{row.ref_audio}: {sound.rate} Hz")


def check_fields(line: ManifestLine, row: ManifestRow, languages: Collection[str]) -> Iterator[Problem]:
    """Yield the problems of the language, the speaker and the text of a row. `languages`: names of those that the model can be given;
    empty: any."""
    name = row.language.strip().lower()
    if languages and name and name != AUTO and LANGUAGES.get(name, name) not in languages:
        yield Problem("language", line.place, f"{row.language!r}; supported: {', '.join(sorted(languages))}, or {AUTO}")
    if not row.speaker:
        yield Problem("no_speaker", line.place, row.audio)
    if kinds := remove_invisible(row.text)[1]:
        yield Problem("invisible", line.place, ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))


def check_across_rows(rows: Sequence[RowFacts]) -> Iterator[Problem]:
    """Yield the problems between rows: repeated ids and clips, leaks between the splits, missing codes."""
    yield from _find_repeated(rows, "same_id", lambda row: row.id)
    yield from _find_repeated(rows, "same_clip", lambda row: (row.validates, row.sound.digest) if row.sound else None)
    yield from _find_in_both_splits(rows)
    yield from _find_recordings_in_both_splits(rows)
    trained = {row.speaker for row in rows if not row.validates}
    if any(not row.validates for row in rows):
        yield from (Problem("unknown_speaker", row.place, str(row.speaker)) for row in rows if row.validates and row.speaker not in trained)
    if any(row.coded for row in rows):
        yield from (Problem("codes_missing", row.place, row.audio) for row in rows if not row.coded)


def _find_repeated(rows: Sequence[RowFacts], kind: str, key: Callable[[RowFacts], Hashable]) -> Iterator[Problem]:
    first: dict[Hashable, RowFacts] = {}
    for row in rows:
        if (value := key(row)) is not None and (earlier := first.setdefault(value, row)) is not row:
            yield Problem(kind, row.place, f"{row.id if kind == 'same_id' else row.audio}: as in {earlier.place}")


def _find_in_both_splits(rows: Sequence[RowFacts]) -> Iterator[Problem]:
    trained = {row.sound.digest: row for row in rows if row.sound and not row.validates}
    for row in rows:
        if row.validates and row.sound and (twin := trained.get(row.sound.digest)):
            yield Problem("in_both_splits", row.place, f"{row.audio}: as in {twin.place}")


def _find_recordings_in_both_splits(rows: Sequence[RowFacts]) -> Iterator[Problem]:
    """Yield a problem for overlapping clips in both splits, which are a leak, and a note for a recording with clips in both, which is
    acceptable."""
    of_source: dict[str, list[RowFacts]] = defaultdict(list)
    for row in rows:
        if row.source is not None:
            of_source[row.source].append(row)
    for source, beside in of_source.items():
        if len({row.validates for row in beside}) == 2:
            yield from _find_overlaps(source, beside)
            yield from (Problem("same_recording", row.place, source) for row in beside if row.validates)


def _find_overlaps(source: str, beside: list[RowFacts]) -> Iterator[Problem]:
    """Yield the overlaps between the splits: clips sorted by start, each compared with the latest-ending clip of the other split so far."""
    timed = [(row.start, row.end, row) for row in beside if row.start is not None and row.end is not None]
    longest: dict[bool, tuple[float, RowFacts]] = {}
    for start, end, row in sorted(timed, key=lambda one: one[:2]):
        until, other = longest.get(not row.validates, (start, row))
        if start < until:
            yield Problem("overlap", (row if row.validates else other).place, f"{source} from {start} s: {row.place} and {other.place}")
        if end > longest.get(row.validates, (-1.0, row))[0]:
            longest[row.validates] = end, row
