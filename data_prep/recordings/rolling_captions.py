"""Rolling captions, as YouTube makes them: each line is shown when it is spoken, again for an instant, and again above the next line.

Each line is read once. In WebVTT the words carry their times (`to<00:00:02.600><c> my</c>`), which are kept: a line ends where the screen
is full and not where the speaker pauses, so only words can be assigned to the pauses between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

WORD_TIME = re.compile(r"<((?:\d+:)?\d{1,2}:\d{1,2}\.\d{1,3})>")
TAG = re.compile(r"<[^<>]*>")
SPOKEN_ANEW_SECONDS = 0.5
"""A cue that shows only known lines repeats speech if it begins this long after the one before; the instant between two cues has no gap."""
SECONDS_BEFORE_LETTERS, SECONDS_PER_LETTER = 0.2, 0.08
"""Assumed duration of a word, that of a slow speaker (12.5 letters a second): captions hold the start of a word and not its end."""
SHORTEST_WORD_SECONDS = 0.01
SPEAKER_CHANGE = re.compile(r">>+(?:(\s*[^\W\d_][\w .'-]{0,30}):(?=\s|$))?")
"""`>>`, and what may be the name of the speaker after it: `>> MODERATOR:`."""

ShownCue = tuple[int, float, float, str]
"""Line number, start and end in seconds, text with tags and line breaks."""


def count_repeating_cues(plain: list[list[str]]) -> int:
    """Number of cues that show a line of the cue before. `plain`: the lines of each cue, without tags."""
    return sum(bool({*before} & {*now} - {""}) for before, now in pairwise(plain))


def find_new_lines(cues: list[ShownCue], plain: list[list[str]]) -> Iterator[tuple[ShownCue, str]]:
    """Yield (cue, line with its tags) of each line where it is first shown."""
    shown: list[str] = []
    before = 0.0
    for cue, lines in zip(cues, plain, strict=True):
        marked = [(line, raw) for line, raw in zip(lines, cue[3].split("\n"), strict=True) if line]
        known = _count_known(shown, [line for line, _ in marked])
        if known == len(marked) and cue[1] - before > SPOKEN_ANEW_SECONDS:
            known = 0
        timed = next((at for at, (_, raw) in enumerate(marked) if WORD_TIME.search(raw)), len(marked))
        yield from ((cue, raw) for _, raw in marked[min(known, timed) :])
        shown, before = [line for line, _ in marked] or shown, cue[2]


def _count_known(shown: list[str], lines: list[str]) -> int:
    """Number of first lines that are the last lines of the cue before."""
    return next((count for count in range(min(len(shown), len(lines)), 0, -1) if shown[-count:] == lines[:count]), 0)


def split_words(start: float, end: float, raw: str) -> list[tuple[float, float, str]]:
    """(start, end, text with tags) of each word with a time of its own; the whole line if its words have none. Ends are estimated."""
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
