"""Cues of a file, before anything is removed from their texts."""

from __future__ import annotations

from typing import NamedTuple

from overtone.finetune.errors import UserError, format_count

MOST_SKIPPED = 0.2
"""Share of unusable cues from which a file is refused; one is always allowed."""
SHOWN = 3


class Cue(NamedTuple):
    """Text from `start` to `end` in seconds."""

    place: str
    """File and line, or another name of the place in its file."""
    start: float
    end: float
    text: str
    speaker: str | None = None


class ParsedCues(NamedTuple):
    """The cues of a file."""

    cues: tuple[Cue, ...]
    skipped: tuple[str, ...] = ()
    """Place and problem of each cue that cannot be used."""
    words: bool = False
    """True if each cue is one word with its time."""
    notes: tuple[str, ...] = ()
    """Notes on how the file was read, where it could be read in several ways."""


def require_mostly_usable(skipped: list[str], total: int, name: str) -> list[str]:
    """Return a note on the skipped cues of a file; none without any. Raises `UserError` if they are too many of `total` cues."""
    if not skipped:
        return []
    shown = "; ".join([*skipped[:SHOWN], *["…"] * (len(skipped) > SHOWN)])
    if len(skipped) == total or (len(skipped) > 1 and len(skipped) > MOST_SKIPPED * total):
        raise UserError(f"{name}: {len(skipped)} of its {format_count(total, 'cue')} cannot be used; correct them: {shown}")
    return [f"{format_count(len(skipped), 'cue')} skipped: {shown}"]
