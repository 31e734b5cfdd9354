"""Parsers for subtitles (SubRip .srt, WebVTT .vtt, YouTube .sbv) and label tracks (Audacity and HTK; .lab, .txt).

WebVTT is read by https://www.w3.org/TR/webvtt1/, text and times only; regions, styles and positions are ignored. SubRip has no
specification, so whatever players accept is read. pysubs2 reads less: it takes times without milliseconds, and notes of WebVTT, for the
text of the cue before, drops the sign of negative times, and does not know the line of a cue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from overtone.data_prep.recordings.invisible_characters import HIDDEN
from overtone.data_prep.recordings.timed_cues import Cue, ParsedCues
from overtone.finetune.errors import UserError

CLOCK = r"-?\s?(?:\d{1,4}\s?:\s?){1,2}\d{1,2}(?:\s?[.,]\s?\d{1,9}|:\d{3})?"
ARROW = r"(?:-{1,3}|[–—])\s?(?:>|&gt;)|[→⟶]"
TIMES = re.compile(rf"\s*({CLOCK})\s*(?:{ARROW})\s*({CLOCK})(?:\s+(.*))?")
SETTINGS = re.compile(r"(?:[A-Za-z]+\d?:\S+\s*)*")
"""Settings that may follow the times: `align:start position:0%`, `X1:0 X2:10`. Anything else is text, which some programs write there."""
SBV_TIMES = re.compile(r"\s*(\d{1,2}:\d{2}:\d{2}\.\d{3}),(\d{1,2}:\d{2}:\d{2}\.\d{3})\s*")
BROKEN_TIMES = re.compile(rf"\s*\S*\d\s?[:;.]\s?\S*\s*(?:{ARROW})|\s*(?:{ARROW})\s*\S*\d:\d|.*\d:\d\d\S*\s*(?:{ARROW})\s*\S*\d")
"""A line that was meant as the times of a cue."""
FIELD = re.compile(r"\d+")
WIDE = str.maketrans("：，．", ":,.")
"""Punctuation that Chinese and Japanese keyboards write."""
NUMBER = re.compile(r"\s*\d{1,7}\s*")
BLOCKS = ("WEBVTT", "NOTE", "STYLE", "REGION")
LABEL = re.compile(r"(-?\d+(?:[.,]\d+)?)\t(-?\d+(?:[.,]\d+)?)\t(.*)")
HTK_LABEL = re.compile(r"(\d+)[ \t]+(\d+)[ \t]+(\S.*)")
HTK_PER_SECOND = 10_000_000
"""Units of 100 ns (The HTK Book, section 6.3)."""
HTK_SHORTEST = HTK_PER_SECOND // 100
"""Minimum end time in HTK units (10 ms); a smaller number is in seconds, since no recording lasts 27 hours."""
PHONES = frozenset({"sil", "pau", "sp", "spn", "h#", "#", "<sil>", "<eps>"})


class _Times(NamedTuple):
    """A line with the times of a cue; None if they cannot be read."""

    line: int
    """Index of the line."""
    span: tuple[float, float] | None
    text: str = ""
    """The text in the same line."""


def parse_subtitles(text: str, path: Path) -> ParsedCues:
    """Parse a .srt, .vtt or .sbv file. Cues whose times cannot be read are skipped. Raises `UserError` for a .vtt file without a header."""
    lines = [_clean_line(line) for line in text.split("\n")]
    first = next((line.split()[0] for line in lines if line.strip()), "")
    if path.suffix.lower() == ".vtt" and first != "WEBVTT":
        raise UserError(f"{path}:1: a WebVTT file starts with WEBVTT; if this is SubRip, rename it to .srt")
    web = first == "WEBVTT"
    times = [found for index, line in enumerate(lines) if (found := _read_times(index, line, path.suffix.lower() == ".sbv"))]
    skipped = list(_list_loose_text(lines, times[0].line if times else len(lines), web, path))
    cues, number = [], 0
    for at, found in enumerate(times):
        above = lines[found.line - 1] if found.line else ""
        number = int(above) if NUMBER.fullmatch(above) else number + 1
        following = times[at + 1].line if at + 1 < len(times) else len(lines)
        stop = _find_stop(lines, found.line, following, number, web) if at + 1 < len(times) else following
        said, loose = _divide_text(lines, found.line + 1, stop, web)
        said = [*filter(None, [found.text]), *said]
        place = f"{path}:{found.line + 1}"
        if found.span is None:
            skipped.append(f"{place}: invalid times {lines[found.line].strip()[:60]!r}, expected 00:00:01,000 --> 00:00:02,500")
        elif any(line.strip() for line in said):
            cues.append(Cue(place, *found.span, "\n".join(said)))
        skipped += [f"{path}:{line + 1}: text without times: {lines[line].strip()[:60]!r}" for line in loose]
    return ParsedCues(tuple(cues), tuple(skipped))


def is_subtitle_text(text: str) -> bool:
    """Return whether a text without the ending of subtitles holds cues: a line begins with two times and an arrow between them."""
    return any(TIMES.fullmatch(_clean_line(line)) for line in text.split("\n") if ">" in line or "→" in line)


def is_label_track(text: str) -> bool:
    """Return whether the first line has two times before its text, which plain text never has."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    htk = HTK_LABEL.fullmatch(first)
    return bool(LABEL.fullmatch(first) or (htk and int(htk[2]) >= HTK_SHORTEST))


def parse_labels(text: str, path: Path) -> ParsedCues:
    """Parse a label track: `start⇥end⇥text` in seconds (Audacity), or `start end text` in units of 100 ns (HTK). Empty ones are dropped."""
    lines = [(number, line.strip(" \r\n")) for number, line in enumerate(text.split("\n"), start=1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("\\")]  # Audacity: the frequencies of a label
    htk = all((found := HTK_LABEL.fullmatch(line)) and int(found[2]) >= HTK_SHORTEST for _, line in lines)
    cues, skipped = [], []
    for number, line in lines:
        found = (HTK_LABEL if htk else LABEL).fullmatch(line)
        if found is None:
            skipped.append(f"{path}:{number}: expected start, end and text with tabs between them; found {line[:60]!r}")
        elif found[3].strip().lower() in PHONES:
            raise UserError(f"{path}:{number}: {found[3].strip()!r} labels a phone or silence; expected lines with the spoken words")
        elif found[3].strip():
            unit = HTK_PER_SECOND if htk else 1
            start, end = (float(found[group].replace(",", ".")) / unit for group in (1, 2))
            cues.append(Cue(f"{path}:{number}", start, end, found[3].strip()))
    return ParsedCues(tuple(cues), tuple(skipped))


def parse_clock(clock: str) -> float:
    """Return the seconds of `1:02:03,4`: fields may be 60 or more, and milliseconds 1000, as rounding makes them."""
    whole, mark, fraction = re.sub(r"\s", "", clock).replace(",", ".").partition(".")
    fields = [int(field) for field in FIELD.findall(whole)]
    if not mark and len(fields) == 4:  # 00:00:01:500
        fraction = f"{fields.pop():03}"
    seconds = 0.0
    for field in fields:
        seconds = 60 * seconds + field
    seconds += 1.0 if fraction == "1000" else int(fraction or 0) / 10 ** len(fraction)
    return -seconds if whole.startswith("-") else seconds


def _clean_line(line: str) -> str:
    """Return a line with times or a number without directional marks, which editors of Arabic and Hebrew add, and with ASCII punctuation.
    Other lines are returned as they are."""
    plain = HIDDEN.sub("", line).translate(WIDE)
    return plain if plain != line and (not plain or TIMES.fullmatch(plain) or NUMBER.fullmatch(plain)) else line


def _read_times(index: int, line: str, sbv: bool) -> _Times | None:
    found = (SBV_TIMES if sbv else TIMES).fullmatch(line) if len(line) < 500 else None
    if found:
        more = "" if sbv or SETTINGS.fullmatch(found[3] or "") else found[3].strip()
        return _Times(index, (parse_clock(found[1]), parse_clock(found[2])), more)
    return _Times(index, None) if len(line) < 500 and BROKEN_TIMES.match(line) else None


def _find_stop(lines: list[str], times: int, following: int, number: int, web: bool) -> int:
    """Return the line at which the text of a cue ends: before the number or the name of the next cue, which is in the line before the next
    times."""
    last = following - 1
    while last > times and not lines[last].strip() and not web:
        last -= 1
    if last <= times or (last < following - 1 and not NUMBER.fullmatch(lines[last])):
        return following
    is_apart = last - 1 > times and not lines[last - 1].strip()
    if not NUMBER.fullmatch(lines[last]):
        return last if web and is_apart else following
    is_numbered = times > 0 and bool(NUMBER.fullmatch(lines[times - 1]))
    return last if is_apart or int(lines[last]) == number + 1 or (is_numbered and last - 1 == times) else following


def _divide_text(lines: list[str], start: int, stop: int, web: bool) -> tuple[list[str], list[int]]:
    """Return (lines of a cue's text, indexes of lines that are loose text). A blank line inside a text is common in SubRip, where only the
    next times end it; YouTube writes a line of one space in WebVTT."""
    said: list[str] = []
    loose: list[int] = []
    for first, block in _split_blocks(lines, start, stop):
        between = lines[first - 1] if first > start else " "
        if first == start or (not (web and not between) and not NUMBER.fullmatch(block[0])):
            said += block
        elif not (web and block[0].split()[0] in BLOCKS):
            loose.append(first)
    return said, loose


def _list_loose_text(lines: list[str], stop: int, web: bool, path: Path) -> Iterator[str]:
    """Yield the text before the first times that is neither a header nor the number of the first cue."""
    for first, block in _split_blocks(lines, 0, stop):
        is_name = first + len(block) == stop and len(block) == 1
        if not is_name and not (web and block[0].split()[0] in BLOCKS) and not NUMBER.fullmatch("".join(block)):
            expected = "a line `00:00:01,000 --> 00:00:02,500`, then its text"
            yield f"{path}:{first + 1}: expected a cue ({expected}), found {block[0].strip()[:60]!r}"


def _split_blocks(lines: list[str], start: int, stop: int) -> Iterator[tuple[int, list[str]]]:
    """Yield (index of the first line, lines) of each block of non-blank lines."""
    block: list[str] = []
    for index in range(start, stop + 1):
        if index < stop and lines[index].strip():
            block.append(lines[index])
        elif block:
            yield index - len(block), block
            block = []
