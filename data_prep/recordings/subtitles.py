"""Parsers for subtitles (SubRip .srt, WebVTT .vtt) and label tracks (Audacity and HTK; .lab, .txt).

WebVTT as in https://www.w3.org/TR/webvtt1/, text and times only; regions, styles and positions are ignored. SubRip has no specification, so
whatever players accept is read: hours of any width, comma or point, cues without a number, tags, coordinates.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from data_prep.recordings import rolling_captions
from finetune.errors import UserError

ARROW = re.compile(r"\s*(\S+)\s+-->\s+(\S+)")
CLOCK = re.compile(r"(?:(\d+):)?([0-5]?\d):([0-5]?\d)[.,](\d{1,3})")
VOICE = re.compile(r"<v(?:\.[^\s>]+)?[ \t]+([^<>]+)>")
TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<[\d:.]+>|\{\\[^{}]*\}")
"""`<i>`, `<font color=…>`, `<c.loud>`, `<v Anna>`, timestamps inside a cue, and `{\\an8}`."""
SOUND = re.compile(r"\[[^\]]*\]|\([^)]*\)|（[^）]*）|【[^】]*】|\*[^*]*\*|[♪♫][^♪♫]*[♪♫]?")
"""`[applause]`, `(laughs)`, and song text between notes."""
LABEL = re.compile(r"(\d+\.\d+|\d+)\t(\d+\.\d+|\d+)\t(.*)")
HTK_LABEL = re.compile(r"(\d+)[ \t]+(\d+)[ \t]+(\S.*)")
HTK_PER_SECOND = 10_000_000
"""Units of 100 ns (The HTK Book, section 6.3)."""
HTK_SHORTEST = HTK_PER_SECOND // 100
"""Minimum end time in HTK units (10 ms); a smaller number is in seconds, since no recording lasts 27 hours."""
PHONES = frozenset({"sil", "pau", "sp", "spn", "h#", "#", "<sil>", "<eps>"})


class Cue(NamedTuple):
    """Text from `start` to `end` in seconds; the cue begins in line `line` of its file."""

    line: int
    start: float
    end: float
    text: str


class Cues(NamedTuple):
    """Cues with speech, and the number of cues that only describe a sound."""

    spoken: tuple[Cue, ...]
    sounds: int
    words: bool = False
    """Whether each cue is one word with its time."""
    rolling: str = ""
    """How rolling captions were read; empty for other subtitles."""
    changes: int = 0
    """Marks of a change of the speaker (`>>`), which are left out of the text."""


def parse_subtitles(text: str, path: Path) -> Cues:
    """Parse a .srt or .vtt file. Raises `UserError` with file and line for invalid files and several voices."""
    blocks = list(_split_blocks(_close_gaps(text)))
    if path.suffix.lower() == ".vtt" and not (blocks and blocks[0][1][0].split()[0] == "WEBVTT"):
        raise UserError(f"{path}:1: a WebVTT file starts with WEBVTT; if this is SubRip, rename it to .srt")
    cues = [cue for line, block in blocks if (cue := _parse_cue(line, block, path))]
    _require_one_voice(blocks, path)
    if _are_rolling(cues):
        return _read_rolling_captions(cues)
    stripped = [(cue, *_strip_speaker_changes(_strip_markup(cue.text))) for cue in cues]
    plain = [cue._replace(text=text) for cue, text, _ in stripped]
    spoken = tuple(cue for cue in plain if re.search(r"\w", SOUND.sub("", cue.text)))
    return Cues(spoken, len(cues) - len(spoken), changes=sum(changes for *_, changes in stripped))


def is_label_track(text: str) -> bool:
    """Whether the first line has two times before its text, which plain text never has."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    htk = HTK_LABEL.fullmatch(first)
    return bool(LABEL.fullmatch(first) or (htk and int(htk[2]) >= HTK_SHORTEST))


def parse_labels(text: str, path: Path) -> Cues:
    """Parse a label track: `start⇥end⇥text` in seconds (Audacity), or `start end text` in units of 100 ns (HTK)."""
    lines = [(number, line.strip(" \r\n")) for number, line in enumerate(text.split("\n"), start=1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("\\")]  # Audacity: the frequencies of a label
    htk = all((found := HTK_LABEL.fullmatch(line)) and int(found[2]) >= HTK_SHORTEST for _, line in lines)
    return Cues(tuple(_parse_label(number, line, htk, path) for number, line in lines), 0)


def _parse_label(number: int, line: str, htk: bool, path: Path) -> Cue:
    found = (HTK_LABEL if htk else LABEL).fullmatch(line)
    if not found:
        raise UserError(f"{path}:{number}: expected start, end and text with tabs between them, as in the first line; found {line[:80]!r}")
    start, end, text = found.groups()
    if text.strip().lower() in PHONES:
        raise UserError(f"{path}:{number}: {text.strip()!r} labels a phone or silence; expected lines with the spoken words")
    unit = HTK_PER_SECOND if htk else 1
    return Cue(number, float(start) / unit, float(end) / unit, text.strip())


def _split_blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, lines) of each block of non-blank lines."""
    block: list[str] = []
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        if line.strip():
            block.append(line)
        elif block:
            yield number - len(block), block
            block = []


def _parse_cue(line: int, block: list[str], path: Path) -> Cue | None:
    """Parse one block; None for a header, note, style or region."""
    at = next((at for at, words in enumerate(block[:2]) if "-->" in words), None)
    if at is None:
        if path.suffix.lower() == ".vtt" and block[0].split()[0] in ("WEBVTT", "NOTE", "STYLE", "REGION"):
            return None
        raise UserError(f"{path}:{line}: expected a cue (a line `00:00:01,000 --> 00:00:02,500`, then its text), found {block[0][:80]!r}")
    times = ARROW.match(block[at])
    start, end = (_parse_seconds(clock) for clock in times.groups()) if times else (None, None)
    if start is None or end is None:
        raise UserError(f"{path}:{line + at}: invalid times: {block[at][:80]!r}; expected 00:00:01,000 --> 00:00:02,500")
    swallowed = next((number for number, words in enumerate(block) if number > at and "-->" in words), None)
    if swallowed:
        raise UserError(f"{path}:{line + swallowed}: times inside the text of another cue; add an empty line before each cue")
    return Cue(line + at, start, end, "\n".join(block[at + 1 :]))


def _parse_seconds(clock: str) -> float | None:
    found = CLOCK.fullmatch(clock)
    if not found:
        return None
    hours, minutes, seconds, fraction = found.groups()
    return int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds) + int(fraction) / 10 ** len(fraction)


def _strip_markup(text: str) -> str:
    """The text on one line without tags. Entities are decoded last: `&lt;i&gt;` is text, not a tag."""
    return " ".join(html.unescape(TAG.sub("", text)).split())


def _strip_speaker_changes(text: str) -> tuple[str, int]:
    """The text without `>>` and `>> NAME:`, and how many there were."""
    found, changes = rolling_captions.SPEAKER_CHANGE.subn(lambda mark: f" {mark[1]}:" if mark[1] and not mark[1].isupper() else " ", text)
    return (" ".join(found.split()) if changes else text), changes


def _require_one_voice(blocks: list[tuple[int, list[str]]], path: Path) -> None:
    """Raises `UserError` for several voices: each recording must have one speaker."""
    voices = {name.strip(): line for line, block in reversed(blocks) for name in VOICE.findall("\n".join(block))}
    if len(voices) > 1:
        (first, _), (second, line) = sorted(voices.items(), key=lambda voice: voice[1])[:2]
        raise UserError(f"{path}:{line}: {second!r} speaks after {first!r}; expected one speaker per recording: split it by speaker")


def _close_gaps(text: str) -> str:
    """The text without lines of spaces inside a cue, which YouTube writes for an empty first line of the screen."""
    lines = text.split("\n")
    following = [*lines[1:], "", ""]
    return "\n".join(
        line
        for line, one, two in zip(lines, following, following[1:], strict=False)
        if not (line and not line.strip()) or not one.strip() or "-->" in one + two
    )


def _are_rolling(cues: list[Cue]) -> bool:
    """Whether most cues repeat a line of the one before, or any do in a file with word times."""
    repeating = rolling_captions.count_repeating_cues([_split_plain_lines(cue) for cue in cues])
    return repeating > len(cues) // 2 or (repeating > 0 and any(rolling_captions.WORD_TIME.search(cue.text) for cue in cues))


def _split_plain_lines(cue: Cue) -> list[str]:
    return [_strip_markup(line) for line in cue.text.split("\n")]


def _read_rolling_captions(cues: list[Cue]) -> Cues:
    """The words of rolling captions, or the lines if the words have no times."""
    lines = list(
        rolling_captions.find_new_lines(
            [(cue.line, cue.start, cue.end, cue.text) for cue in cues], [_split_plain_lines(cue) for cue in cues]
        )
    )
    timed = any(rolling_captions.WORD_TIME.search(raw) for _, raw in lines)
    found: list[Cue] = []
    for (number, start, end, _), raw in lines:
        for begin, stop, text in rolling_captions.split_words(start, end, raw) if timed else [(start, end, raw)]:
            plain, _ = _strip_speaker_changes(_strip_markup(text))
            earliest = max(begin, found[-1].start if found else 0.0)
            found.append(Cue(number, earliest, max(stop, earliest + rolling_captions.SHORTEST_WORD_SECONDS), plain))
    spoken = tuple(cue for cue in found if re.search(r"\w", SOUND.sub("", cue.text)))
    changes = sum(_strip_speaker_changes(_strip_markup(raw))[1] for _, raw in lines)
    how = "with the times of their words" if timed else "without times of words, so texts may be off by some words: prefer the .vtt file"
    return Cues(spoken, len(found) - len(spoken), timed, f"rolling captions, each line read once, {how}", changes)
