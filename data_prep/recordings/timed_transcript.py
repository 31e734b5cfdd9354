"""Timed transcripts: utterances with start, end and spoken text, from the cues of any format."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from overtone.data_prep.recordings.removed_text import RemovedText
from overtone.data_prep.recordings.rolling_captions import SECONDS_BEFORE_LETTERS, SECONDS_PER_LETTER, merge_rolling_cues
from overtone.data_prep.recordings.speaker_labels import list_speakers, name_speaker
from overtone.data_prep.recordings.timed_cues import Cue, ParsedCues, require_mostly_usable
from overtone.data_prep.recordings.unspoken_text import StrippedText, read_spoken_texts
from overtone.finetune.errors import UserError, format_count

SHOWN_SPEAKERS = 3
REPEATED = "cues that repeat the cue before"
INCOMPLETE = "texts that lack words that somebody speaks"
SOUNDS = "texts without speech"


class TimedUtterance(BaseModel):
    """One utterance, times in seconds. Approximate times suffice: they select the pause to cut at, never the position inside it."""

    model_config = ConfigDict(frozen=True)

    start: float = Field(ge=0, allow_inf_nan=False)
    end: float = Field(ge=0, allow_inf_nan=False)
    text: str = Field(min_length=1)


class TimedTranscript(NamedTuple):
    """The utterances of a recording."""

    utterances: tuple[TimedUtterance, ...]
    words: bool
    """True if the utterances are single words."""
    speaker: str | None
    """Name of the speaker, if labels give one."""
    notes: tuple[str, ...]


def make_transcript(parsed: ParsedCues, name: str, removed: RemovedText) -> TimedTranscript:
    """Return the utterances of a file's cues, in order of time, without what nobody speaks; `removed` counts that.

    Cues without usable times are skipped and noted. Raises `UserError` with `name` if they are many, if nothing is left, and if several
    people speak.
    """
    merged = merge_rolling_cues(parsed)
    cues, skipped = _skip_impossible(merged.cues)
    skipped = [*merged.skipped, *skipped]
    notes = [*merged.notes, *require_mostly_usable(skipped, len(parsed.cues) + len(parsed.skipped), name)]
    cues = _drop_repeated(cues, removed)
    spoken, decisions = read_spoken_texts([cue.text for cue in cues], removed)
    speaker = _require_one_speaker(cues, spoken, name)
    used: list[tuple[Cue, str]] = []
    for cue, one in zip(cues, spoken, strict=True):
        if one.is_incomplete and not merged.words:
            removed.add(INCOMPLETE, cue.text)
        elif one.text:
            used.append((cue, one.text))
        elif cue.text.strip():
            removed.add(SOUNDS, cue.text)
    if not used:
        raise UserError(f"{name} has no utterances: nobody speaks in its {format_count(len(cues), 'cue')}; add some or remove the file")
    if any(later.start < earlier.start for (earlier, _), (later, _) in pairwise(used)):
        used.sort(key=lambda one: one[0].start)
        notes.append("its cues are not in the order of their times, and were sorted")
    utterances, instant = _make_utterances(used)
    notes += [f"{format_count(instant, 'cue')} of no duration: read as long as its text takes"] if instant else []
    changes = sum(one.changes for one in spoken)
    notes += [f"{format_count(changes, 'change')} of the speaker (>>)"] if changes else []
    return TimedTranscript(utterances, merged.words, speaker, (*notes, *decisions))


def _skip_impossible(cues: tuple[Cue, ...]) -> tuple[list[Cue], list[str]]:
    """Return the cues that are in the recording and do not end before they start, and a note on each of the others."""
    kept, skipped = [], []
    for cue in cues:
        if cue.end < cue.start:
            skipped.append(f"{cue.place}: end {cue.end} is not after start {cue.start}")
        elif cue.end < 0 or cue.start < 0 == cue.end:
            skipped.append(f"{cue.place}: from {cue.start} s to {cue.end} s, before the recording")
        else:
            kept.append(cue._replace(start=max(0.0, cue.start)))
    return kept, skipped


def _drop_repeated(cues: list[Cue], removed: RemovedText) -> list[Cue]:
    """Return the cues without those that are there twice, with the same times and the same text."""
    seen: Counter[tuple[float, float, str]] = Counter()
    kept = []
    for cue in cues:
        key = (cue.start, cue.end, cue.text)
        if seen[key]:
            removed.add(REPEATED, cue.text)
        else:
            kept.append(cue)
        seen[key] += 1
    return kept


def _require_one_speaker(cues: list[Cue], spoken: list[StrippedText], name: str) -> str | None:
    """Return the name of the one speaker; None without one. Raises `UserError` for several: each recording must have one speaker."""
    of_cues = [(place, one) for place, one in zip(cues, spoken, strict=True)]
    named = [(cue, who) for cue, one in of_cues for who in ([cue.speaker] if cue.speaker else []) + list(one.speakers)]
    speakers = list_speakers(who for _, who in named)
    if len(speakers) > 1:
        place = next(cue.place for cue, who in named if list_speakers([speakers[0], who])[1:])
        refuse_several_speakers(speakers, name, place)
    return name_speaker(speakers)


def refuse_several_speakers(speakers: list[str], name: str, place: str = "") -> None:
    """Raises `UserError`: each recording must have one speaker."""
    shown = ", ".join([*speakers[:SHOWN_SPEAKERS], *["…"] * (len(speakers) > SHOWN_SPEAKERS)])
    where = f" ({speakers[1]!r} speaks at {place})" if place else ""
    raise UserError(
        f"{name}: several speakers ({shown}) in one recording; split it by speaker first{where}. If these are no speakers, remove the "
        "names from the text"
    )


def _make_utterances(used: list[tuple[Cue, str]]) -> tuple[tuple[TimedUtterance, ...], int]:
    """Return (utterances, number of those without a duration). An utterance without one lasts as long as its letters take, or until the
    next cue begins."""
    found, instant = [], 0
    starts = [cue.start for cue, _ in used]
    for at, (cue, text) in enumerate(used):
        end = cue.end
        if end <= cue.start:
            instant += 1
            usual = cue.start + SECONDS_BEFORE_LETTERS + SECONDS_PER_LETTER * len(text)
            following = starts[at + 1] if at + 1 < len(starts) else usual
            end = min(usual, following) if following > cue.start else usual
        found.append(TimedUtterance(start=cue.start, end=end, text=text))
    return tuple(found), instant
