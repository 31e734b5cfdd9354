"""The texts that a voice is evaluated on: rows of voice data, with or without a recording of them, in training or new to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_prep import manifest
from data_prep.measure import WORD
from finetune import files
from finetune.errors import UserError

from .survey import visit

SEEN, UNSEEN, ALL = "seen", "unseen", "all"
"""Sets of items: texts of the training data, texts that are not, and texts of which nobody said."""


@dataclass(frozen=True)
class Item:
    """One text to be said in one voice."""

    key: str
    """Unique within an evaluation; names its files."""
    text: str
    speaker: str
    """Lower-case."""
    language: str
    """Lower-case English name, or `auto`."""
    recording: Path | None = None
    """Of the text, by the speaker."""
    reference: Path | None = None
    """Another clip of the speaker, to be cloned from."""
    reference_text: str | None = None
    """What that clip says: with it its manner is cloned too, without it only its voice."""
    group: str = ALL
    """`seen`, `unseen`, or `all` where it is unknown."""


Check = Callable[[Item], None]
"""Raises `UserError` for an item that a model cannot say."""


def read(data: Path, speaker: str | None, reference: Path | None, check: Check) -> list[Item]:
    """The rows of `data`. `speaker` and `reference` are for rows that name none.

    Raises `UserError` with file and line for every row without a text or a speaker, with a clip that is not there or lies outside of the
    folder, or that `check` refuses.
    """
    items: list[Item] = []

    def meet(row: dict[str, Any]) -> None:
        item = _item(f"{data.stem}-{len(items) + 1:04d}", row, data.parent, speaker, reference)
        items.append(item)
        check(item)

    visit(data, meet)
    return items


def divided(items: Sequence[Item], training: Sequence[Item]) -> list[Item]:
    """The items as seen or unseen, and rows of the training data until there are as many seen ones, evenly picked from the rest of it.

    A text is seen if the training data has the same words, whatever their case and punctuation.
    """
    known = {words(item.text) for item in training}
    told = [replace(item, group=SEEN if words(item.text) in known else UNSEEN) for item in items]
    wanted = sum(item.group == UNSEEN for item in told) - sum(item.group == SEEN for item in told)
    asked = {words(item.text) for item in items}
    others = [replace(item, key=f"seen-{item.key}", group=SEEN) for item in training if words(item.text) not in asked]
    return [*told, *evenly(others, max(wanted, 0))]


def limited(items: Sequence[Item], most: int | None) -> list[Item]:
    """At most so many of each group, evenly picked: the beginning of a file may be one recording."""
    if most is None:
        return list(items)
    return [item for group in groups_of(items) for item in evenly([one for one in items if one.group == group], most)]


def groups_of(items: Iterable[Item]) -> list[str]:
    """Those that occur, unseen texts first: they are what a voice is for."""
    found = {item.group for item in items}
    return [group for group in (UNSEEN, SEEN, ALL) if group in found]


def evenly(items: Sequence[Item], count: int) -> list[Item]:
    """`count` of them at equal distances, or all."""
    if count >= len(items):
        return list(items)
    return [items[at * len(items) // count] for at in range(count)]


def words(text: str) -> str:
    """What two texts must have in common to be the same."""
    return " ".join(WORD.findall(text.casefold()))


def _item(key: str, row: dict[str, Any], root: Path, speaker: str | None, reference: Path | None) -> Item:
    text, name = row.get("text"), row.get("speaker") or speaker
    if not isinstance(text, str) or not text.strip():
        raise UserError('the row has no text to say; add "text" to it, or remove it')
    if not words(text):
        raise UserError(f"text {text!r} has no word in it; correct it, or remove the row")
    if not isinstance(name, str):
        raise UserError('the row names no speaker; add "speaker" to it, or give --speaker NAME for all such rows')
    return Item(
        key=key,
        text=text,
        speaker=manifest.speaker_name(name),
        language=manifest.language_name(row.get("language") or manifest.AUTO),
        recording=_clip(root, row, "audio"),
        reference=_clip(root, row, "ref_audio") or reference,
        reference_text=row.get("ref_text") or None,
    )


def _clip(root: Path, row: dict[str, Any], column: str) -> Path | None:
    told = row.get(column)
    if not told:
        return None
    path = files.resolve_under(root, str(told))
    if not path.is_file():
        raise UserError(f"{column} {told}: no such file; restore it, or take the column out of the row")
    return path
