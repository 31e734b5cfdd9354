"""Finds where the words of a transcript are spoken in a recording: repairs late subtitles, divides long ones, and times plain text.

The recording is aligned window by window (at most 28 s, between pauses), each with the part of the text that may be spoken there, so time
and memory per window do not depend on the length of the recording.

A sentence that nobody speaks would get a place between its neighbours, or in their sound. So the aligner may leave out whole sentences of a
window, and a doubtful one is dropped if the sound fits its neighbours alone, and better than with it.
"""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from overtone.data_prep.alignment.clip_alignment import split_words
from overtone.data_prep.alignment.interface import LoadedAligner, TextAlignment
from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio, Samples, convert_position
from overtone.data_prep.segmentation.clip_segmentation import SENTENCE_ENDS, TextUnit
from overtone.data_prep.segmentation.vad import Region
from overtone.finetune.errors import format_count
from overtone.finetune.storage import files

HINT_ERROR = 8 * MASTER_RATE
"""Largest error of the times of a transcript, in samples."""
WORDS_PER_SECOND, SPARE_WORDS = 5, 40
"""Words of a plain text that may be spoken in a window: twice the usual rate, and the words that the speaker may have left out."""
LEAST_LOCATED = 0.8
"""Share of the words of an utterance that must be located for its times to change."""
LEAST_SHIFT = 0.25
"""Smallest difference, in seconds, that is reported. Smaller ones are ignored: they are errors of the aligner, or margins of the
subtitles."""


LONGEST_COMPARED = 60.0
"""Maximum seconds of sound in which the text is compared with and without a sentence: the memory grows with the duration."""
MARGIN = MASTER_RATE // 10
"""Samples before and after the words that belong to the measured sound, as in clips."""
CLOSING = "\"'”’»)] "
"""Characters that may follow the end of a sentence."""
SHOWN, SHOWN_CHARACTERS = 3, 60


class LocatedText(BaseModel):
    """The text of a recording with times from its sound."""

    model_config = ConfigDict(frozen=True)

    units: list[TextUnit]
    ends: list[int]
    """`stop` of the units that end an utterance of the transcript; a cut there keeps its segmentation."""
    note: str = ""
    """Note for the user on what was changed."""


class DividedText(BaseModel):
    """A text some of whose utterances are single words."""

    model_config = ConfigDict(frozen=True)

    units: list[TextUnit]
    ends: list[int]
    """`stop` of the units that end an utterance of the transcript."""


Times = Literal["unknown", "approximate", "right"]
"""Accuracy of the times of utterances: unknown (one plain text), approximately right (subtitles), or fitting the speech."""


class _Utterance(NamedTuple):
    unit: TextUnit
    words: list[int]
    """Its words among those of the whole transcript, without those that are not spoken."""
    located: list[int]
    """The words whose places in the sound give the utterance its times; empty if it keeps its own."""


def locate_utterances(
    aligner: LoadedAligner, audio: Audio, windows: Sequence[Region], utterances: Sequence[TextUnit], longest: float, times: Times
) -> LocatedText:
    """Return the units with the times of the sound. `audio` at 16 kHz; `longest`: duration in seconds above which an utterance is divided
    into words. If the `times` of the utterances are right, only such long utterances get new times.

    An utterance that is hardly found keeps its times, moved by the usual error of its neighbours. Sentences that are not spoken are left
    out, unless the times are right.
    """
    words = [split_words(one.text) for one in utterances]
    texts = [word for own in words for word in own]
    passages = _list_passages(words, times)
    found = _locate_words(aligner, audio, windows, texts, passages, None if times == "unknown" else _interpolate_times(utterances))
    unspoken = _find_unspoken(aligner, audio, texts, passages, found)
    absent = {at for passage in unspoken for at in passage}
    found = {at: place for at, place in found.items() if at not in absent}
    numbers = itertools.count()
    of_each = [[at for at in itertools.islice(numbers, len(own)) if at not in absent] for own in words]
    spoken = [
        _choose_located(_omit_words(one, own, texts, len(own) < len(all_of_it)), own, found, longest, times)
        for one, own, all_of_it in zip(utterances, of_each, words, strict=True)
        if own
    ]
    errors = [found[one.located[0]].start - one.unit.start for one in spoken if one.located]
    usual = int(median(errors)) if errors and times == "approximate" else 0
    units, ends = list[TextUnit](), list[int]()
    for one in spoken:
        new = _set_times(one, texts, found, longest, usual)
        if units and new[0].start < units[-1].start:  # the new times are out of order, and the old ones are not
            start, stop = max(one.unit.start, units[-1].start), max(one.unit.stop, units[-1].start + 1)
            new = [one.unit.model_copy(update={"start": start, "stop": stop})]
        units += new
        ends.append(new[-1].stop)
    moved = sum(abs(error) > LEAST_SHIFT * MASTER_RATE for error in errors) if times != "unknown" else 0
    divided = sum(_is_divided(one, found, longest) for one in spoken)
    note = _describe_changes(utterances, usual, moved, divided, len(texts) - len(absent) - len(found))
    left_out = [" ".join(texts[passage.start : passage.stop]) for passage in unspoken]
    return LocatedText(units=units, ends=ends, note="; ".join(filter(None, [note, describe_unspoken(left_out)])))


def _omit_words(unit: TextUnit, words: Sequence[int], texts: Sequence[str], changed: bool) -> TextUnit:
    """Return the utterance with no other words than those in `words`."""
    if not changed:
        return unit
    space = unit.text[: len(unit.text) - len(unit.text.lstrip())]
    return unit.model_copy(update={"text": space + " ".join(texts[at] for at in words)})


def _choose_located(unit: TextUnit, words: list[int], found: Mapping[int, Region], longest: float, times: Times) -> _Utterance:
    located = [at for at in words if at in found]
    enough = len(located) >= (0 if times == "unknown" else LEAST_LOCATED) * len(words)
    keeps = times == "right" and Region(unit.start, unit.stop).seconds <= longest
    return _Utterance(unit, words, located if enough and not keeps else [])


def _is_divided(one: _Utterance, found: Mapping[int, Region], longest: float) -> bool:
    """Return whether the utterance lasts longer than a clip may."""
    return bool(one.located) and Region(found[one.located[0]].start, found[one.located[-1]].stop).seconds > longest


def _set_times(one: _Utterance, texts: Sequence[str], found: Mapping[int, Region], longest: float, usual: int) -> list[TextUnit]:
    """Return the utterance with its new times; a long one is divided into its words. `usual`: error of the times of most utterances, in
    samples."""
    if _is_divided(one, found, longest):
        return [
            TextUnit(text="".join(f" {texts[at]}" for at in words), start=found[place].start, stop=found[place].stop)
            for place, words in _attach_missing(one.words, one.located)
        ]
    if one.located:
        return [one.unit.model_copy(update={"start": found[one.located[0]].start, "stop": found[one.located[-1]].stop})]
    return [one.unit.model_copy(update={"start": max(one.unit.start + usual, 0), "stop": max(one.unit.stop + usual, 1)})]


def divide_at_changes(
    aligner: LoadedAligner, audio: Audio, units: Sequence[TextUnit], ends: Sequence[int], changes: Sequence[int]
) -> DividedText:
    """Return the text, in which each utterance that spans a change of the voice is divided into its words, so that it can be cut there.
    `audio` at 16 kHz; `ends`: `stop` of the units that end an utterance; `changes`: samples at `MASTER_RATE`, ascending.

    An utterance stays whole if it does not fit its sound, or if that is unknown.
    """
    divided, all_ends = list[TextUnit](), list(ends)
    for unit in units:
        words = _align_unit(aligner, audio, unit) if bisect_left(changes, unit.stop) > bisect_right(changes, unit.start) else []
        divided += words or [unit]
        all_ends += [words[-1].stop] if words else []
    return DividedText(units=divided, ends=all_ends)


def _align_unit(aligner: LoadedAligner, audio: Audio, unit: TextUnit) -> list[TextUnit]:
    """Return the words of an utterance with their own times; [] if it does not fit its sound, or not all words are found."""
    place, words = Region(unit.start, unit.stop), split_words(unit.text)
    start = max(place.start - MARGIN, 0)
    found = aligner.align(_cut_place(audio, place), words) if place.seconds <= LONGEST_COMPARED else TextAlignment(score=None)
    if found.score is None or found.score < 0 or len(found.words) < len(words):
        return []
    times = [(start + round(one.start * MASTER_RATE), start + round(one.stop * MASTER_RATE)) for one in found.words]
    return [TextUnit(text=f" {word}", start=begin, stop=end) for word, (begin, end) in zip(words, times, strict=True)]


@functools.cache
def compute_code_digest() -> str:
    """Return the digest of this file: part of the cache key, so that results of other code are not reused."""
    return files.digest(Path(__file__))


def _list_passages(words: Sequence[Sequence[str]], times: Times) -> list[range]:
    """Return the passages that a speaker may have left out, as ranges of words of the whole transcript, from the words of each utterance:
    the sentences of a plain text, and whole cues of subtitles. If the times are right, there are none: an unspoken passage is found at its
    own place, and a search for others would lose spoken ones."""
    passages, at = list[range](), 0
    for own in words if times != "right" else ():
        inner = [number for number, word in enumerate(own[:-1], start=1) if word.rstrip(CLOSING).endswith(SENTENCE_ENDS)]
        bounds = [0, *(inner if times == "unknown" else ()), len(own)]
        passages += [range(at + begin, at + end) for begin, end in itertools.pairwise(bounds) if begin < end]
        at += len(own)
    return passages


def _find_unspoken(
    aligner: LoadedAligner, audio: Audio, texts: Sequence[str], sentences: Sequence[range], found: Mapping[int, Region]
) -> list[range]:
    """Return the sentences that nobody speaks: without them, the sound of their neighbours fits its text, and fits it better than with
    them.

    A sentence is compared only if hardly any of its words are found, or if it does not fit its place.
    """
    places = [_find_place(sentence, found) for sentence in sentences]
    doubtful = [not _fits_place(aligner, audio, texts, *one) for one in zip(sentences, places, strict=True)]
    unspoken, at = list[range](), 0
    for is_doubtful, group in itertools.groupby(doubtful):
        first, at = at, at + len(list(group))
        around = [index for index in (first - 1, at) if 0 <= index < len(sentences)]
        if not is_doubtful or not around:
            continue
        known = [place for place in places[max(first - 1, 0) : at + 1] if place]
        place = Region(min(one.start for one in known), max(one.stop for one in known))
        kept = [text for index in around for text in texts[sentences[index].start : sentences[index].stop]]
        complete = texts[sentences[max(first - 1, 0)].start : sentences[min(at, len(sentences) - 1)].stop]
        without, together = (_score_words(aligner, audio, words, place) for words in (kept, complete))
        if without is not None and without >= 0 and (together is None or without > together):
            unspoken += sentences[first:at]
    return unspoken


def _find_place(sentence: range, found: Mapping[int, Region]) -> Region | None:
    """Return the samples from the first to the last located word; None if the share of located words is below `LEAST_LOCATED`."""
    located = [found[at] for at in sentence if at in found]
    return Region(located[0].start, located[-1].stop) if len(located) >= LEAST_LOCATED * len(sentence) else None


def _fits_place(aligner: LoadedAligner, audio: Audio, texts: Sequence[str], sentence: range, place: Region | None) -> bool:
    """Return whether a sentence has a place whose sound fits its text, as far as the aligner knows its words."""
    score = _score_words(aligner, audio, texts[sentence.start : sentence.stop], place) if place else -1.0
    return score is None or score >= 0


def _score_words(aligner: LoadedAligner, audio: Audio, words: Sequence[str], place: Region) -> float | None:
    """Return the score of the alignment of `words` with the sound in `place`; None if it is unknown, or the place is too long."""
    if place.seconds > LONGEST_COMPARED:
        return None
    return aligner.align(_cut_place(audio, place), words).score


def _cut_place(audio: Audio, place: Region) -> Samples:
    """Return the samples [n] at 16 kHz of a place, with a margin."""
    start, stop = (convert_position(edge, MASTER_RATE, SPEECH_RATE) for edge in (max(place.start - MARGIN, 0), place.stop + MARGIN))
    return audio.samples[start:stop]


def _locate_words(
    aligner: LoadedAligner,
    audio: Audio,
    windows: Sequence[Region],
    words: Sequence[str],
    sentences: Sequence[range],
    hints: list[int] | None,
) -> dict[int, Region]:
    """Return position in `words` → samples at `MASTER_RATE`, in order; omits words that are not found. Whole `sentences` may be left
    out."""
    found: dict[int, Region] = {}
    expected, spare = 0, SPARE_WORDS
    for window in windows:
        first, last = expected, expected + spare + int(WORDS_PER_SECOND * window.seconds)
        if hints is not None:
            near = [at for at, hint in enumerate(hints) if window.start - HINT_ERROR <= hint <= window.stop + HINT_ERROR and at >= expected]
            first, last = (near[0], near[-1] + 1) if near else (0, 0)
        start, stop = (convert_position(edge, MASTER_RATE, SPEECH_RATE) for edge in window)
        begins = [one.start - first for one in sentences if first < one.start < last]
        run = aligner.locate(audio.samples[start:stop], words[first:last], begins) if first < min(last, len(words)) else ()
        for word in run:
            begin, end = (window.start + round(seconds * MASTER_RATE) for seconds in (word.start, word.stop))
            found[first + word.position] = Region(begin, max(end, begin + 1))
        if run:
            expected, spare = first + run[-1].position + 1, SPARE_WORDS
        else:
            spare += int(WORDS_PER_SECOND * window.seconds)
    return found


def _attach_missing(positions: Sequence[int], located: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Return (located word, words) of each unit: a word that is not located goes with the located one before it. Otherwise the text would
    lack a word that was spoken; a word that was not spoken lowers the alignment score of the clip."""
    starts = [positions[0], *located[1:]]
    stops = [*located[1:], positions[-1] + 1]
    return [(place, [at for at in positions if start <= at < stop]) for place, start, stop in zip(located, starts, stops, strict=True)]


def _interpolate_times(utterances: Sequence[TextUnit]) -> list[int]:
    """Return the approximate sample of each word, from the times of its utterance."""
    return [
        one.start + (one.stop - one.start) * at // count
        for one in utterances
        for count in [len(split_words(one.text))]
        for at in range(count)
    ]


def _describe_changes(utterances: Sequence[TextUnit], usual: int, moved: int, divided: int, lost: int) -> str:
    parts = []
    if moved:
        way = "late" if usual < 0 else "early"
        shift = f", usually {abs(usual) / MASTER_RATE:.1f} s {way}" if abs(usual) > LEAST_SHIFT * MASTER_RATE else ""
        parts.append(f"times of {moved} of {len(utterances)} utterances corrected by alignment{shift}")
    if divided:
        parts.append(f"{divided} long utterances divided at pauses")
    if lost:
        parts.append(f"{lost} words of the transcript not found in the sound")
    return "; ".join(parts)


def describe_unspoken(texts: Sequence[str]) -> str:
    """Return a note on sentences that nobody speaks; "" if there are none."""
    if not texts:
        return ""
    shown = ", ".join(f'"{text[:SHOWN_CHARACTERS]}"' for text in texts[:SHOWN])
    return f"{format_count(len(texts), 'sentence')} not spoken, dropped: {shown}{', …' if len(texts) > SHOWN else ''}"
