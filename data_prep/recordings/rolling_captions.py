"""Rolling captions, as YouTube makes them: each line is shown when it is spoken, again for an instant, and again above the next line.

Each line is read once. In WebVTT the words carry their times (`to<00:00:02.600><c> my</c>`), which are kept: a line ends where the screen
is full and not where the speaker pauses, so only words can be assigned to the pauses between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from overtone.data_prep.recordings.timed_cues import Cue, ParsedCues
from overtone.data_prep.recordings.unspoken_text import strip_markup

WORD_TIME = re.compile(r"<((?:\d+:)?\d{1,2}:\d{1,2}\.\d{1,3})>")
TAG = re.compile(r"<[^<>]*>")
SPOKEN_ANEW_SECONDS = 0.5
"""A cue that shows only known lines repeats speech if it begins this long after the one before; the instant between two cues has no gap."""
SECONDS_BEFORE_LETTERS, SECONDS_PER_LETTER = 0.2, 0.08
"""Assumed duration of a word, that of a slow speaker (12.5 letters a second): captions hold the start of a word and not its end."""
SHORTEST_WORD_SECONDS = 0.01


def merge_rolling_cues(parsed: ParsedCues) -> ParsedCues:
    """Return the words of rolling captions, or their lines if the words have no times; other cues are returned as they are."""
    plain = [[" ".join(strip_markup(line).split()) for line in cue.text.split("\n")] for cue in parsed.cues]
    if parsed.words or not _are_rolling(parsed.cues, plain):
        return parsed
    lines = list(_find_new_lines(parsed.cues, plain))
    timed = any(WORD_TIME.search(raw) for _, raw in lines)
    found: list[Cue] = []
    for cue, raw in lines:
        for begin, stop, text in split_words(cue.start, cue.end, raw) if timed else [(cue.start, cue.end, raw)]:
            earliest = max(begin, found[-1].start if found else 0.0)
            found.append(Cue(cue.place, earliest, max(stop, earliest + SHORTEST_WORD_SECONDS), text, cue.speaker))
    how = "with the times of their words" if timed else "without times of words, so texts may be off by some words: prefer the .vtt file"
    note = f"rolling captions, each line read once, {how}"
    return ParsedCues(tuple(found), parsed.skipped, timed, (*parsed.notes, note))


def _are_rolling(cues: Sequence[Cue], plain: list[list[str]]) -> bool:
    """Return whether most cues repeat a line of the one before, or any do in a file with word times. `plain`: the lines of each cue,
    without tags."""
    repeating = sum(bool({*before} & {*now} - {""}) for before, now in pairwise(plain))
    return repeating > len(cues) // 2 or (repeating > 0 and any(WORD_TIME.search(cue.text) for cue in cues))


def _find_new_lines(cues: Sequence[Cue], plain: list[list[str]]) -> Iterator[tuple[Cue, str]]:
    """Yield (cue, line with its tags) of each line where it is first shown."""
    shown: list[str] = []
    before = 0.0
    for cue, lines in zip(cues, plain, strict=True):
        marked = [(line, raw) for line, raw in zip(lines, cue.text.split("\n"), strict=True) if line]
        now = [line for line, _ in marked]
        known = next((count for count in range(min(len(shown), len(now)), 0, -1) if shown[-count:] == now[:count]), 0)
        if known == len(marked) and cue.start - before > SPOKEN_ANEW_SECONDS:
            known = 0
        timed = next((at for at, (_, raw) in enumerate(marked) if WORD_TIME.search(raw)), len(marked))
        yield from ((cue, raw) for _, raw in marked[min(known, timed) :])
        shown, before = now or shown, cue.end


def split_words(start: float, end: float, raw: str) -> list[tuple[float, float, str]]:
    """Return (start, end, text with tags) of each word with a time of its own; the whole line if its words have none. Ends are
    estimated."""
    first, *rest = WORD_TIME.split(raw)
    pieces = [(start, first), *((_parse_clock(clock), text) for clock, text in zip(rest[::2], rest[1::2], strict=True))]
    begins = [begin for begin, _ in pieces[1:]] + [end]
    words = []
    for (begin, text), following in zip(pieces, begins, strict=True):
        if text.strip():
            letters = len(TAG.sub("", text).strip())
            longest = SECONDS_BEFORE_LETTERS + SECONDS_PER_LETTER * letters if rest else following - begin
            words.append((begin, max(begin + SHORTEST_WORD_SECONDS, min(following, begin + longest)), text))
    return words


def _parse_clock(clock: str) -> float:
    seconds = 0.0
    for part in clock.split(":"):
        seconds = 60 * seconds + float(part)
    return seconds
