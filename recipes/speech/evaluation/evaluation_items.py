"""The texts that a voice is evaluated on: rows of voice data, with or without a recording, seen or unseen in training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from overtone.data_prep import manifest
from overtone.data_prep.clips.measurements import WORD
from overtone.finetune.data.jsonl_rows import visit_rows
from overtone.finetune.errors import UserError, format_count
from overtone.finetune.recipe import Row
from overtone.finetune.storage.referenced_files import find_file
from overtone.recipes.speech.spoken_text import clean_text

ItemT = TypeVar("ItemT")

SEEN, UNSEEN, ALL = "seen", "unseen", "all"
"""Groups of items: texts of the training data, other texts, and, where the training data is not given, all texts."""

MOST_NAMED = 3
"""Texts that a note names; the others are counted."""
HOW_TO_MAKE_ROWS = "`overtone voice RECORDINGS --out FOLDER` makes some"
"""Advice for a file that is missing or empty."""


@dataclass(frozen=True)
class Item:
    """One text to speak in one voice."""

    key: str
    """Unique within an evaluation; names its files."""
    text: str
    """As it is spoken: what a model says and a judge expects."""
    speaker: str
    """Name of the speaker in lower case."""
    language: str
    """English name in lower case, or `auto`."""
    recording: Path | None = None
    """The speaker's own recording of the text."""
    reference: Path | None = None
    """Another clip of the speaker, to clone from."""
    reference_text: str | None = None
    """Transcript of that clip. With it, the clip's style is cloned too; without it, only the voice."""
    group: str = ALL
    """`seen`, `unseen`, or `all` if that is unknown."""
    unspoken: str = ""
    """The parts of the given text that nobody speaks and that were dropped, as in `2 emoji`."""


Check = Callable[[Item], None]
"""Raises `UserError` for an item that a model cannot speak."""


def read_items(data: Path, speaker: str | None, reference: Path | None, check: Check) -> list[Item]:
    """The rows of `data` as items. `speaker` and `reference` are for rows without one.

    Raises `UserError` with file and line for each row that has no text or speaker, has a clip that is missing or outside of the
    folder, or is refused by `check`.
    """
    items: list[Item] = []

    def add(_: int, row: Row) -> None:
        item = _parse_item(f"{data.stem}-{len(items) + 1:04d}", row, data.parent, speaker, reference)
        items.append(item)
        check(item)

    visit_rows(data, add, HOW_TO_MAKE_ROWS)
    return items


def list_speakers(files: Iterable[Path], speaker: str | None) -> set[str]:
    """The speakers of all rows of the files; `speaker`: that of rows without one. Raises `UserError` as `read_items` does."""
    found = set[str]()
    for path in files:
        visit_rows(path, lambda _, row: found.add(_parse_speaker(row, speaker)), HOW_TO_MAKE_ROWS)
    return found


def mark_seen(items: Sequence[Item], training: Sequence[Item]) -> list[Item]:
    """The items marked as seen or unseen. If there are fewer seen than unseen ones, rows of the training data are added, evenly picked.

    A text is seen if the training data has the same words, whatever their case and punctuation.
    """
    trained = {normalize(item.text) for item in training}
    marked = [replace(item, group=SEEN if normalize(item.text) in trained else UNSEEN) for item in items]
    wanted = sum(item.group == UNSEEN for item in marked) - sum(item.group == SEEN for item in marked)
    given = {normalize(item.text) for item in items}
    others = [replace(item, key=f"seen-{item.key}", group=SEEN) for item in training if normalize(item.text) not in given]
    return [*marked, *pick_evenly(others, max(wanted, 0))]


def describe_unspoken(items: Sequence[Item]) -> list[str]:
    """A note if parts of the given texts are not spoken; otherwise none."""
    changed = [item for item in items if item.unspoken]
    named = ", ".join(f"{item.key} ({item.unspoken})" for item in changed[:MOST_NAMED])
    more = f", and {len(changed) - MOST_NAMED} more" if len(changed) > MOST_NAMED else ""
    return [f"{format_count(len(changed), 'text')} with parts that nobody speaks, which are dropped: {named}{more}."] if changed else []


def limit_groups(items: Sequence[Item], most: int | None) -> list[Item]:
    """At most `most` items of each group, evenly picked, because the beginning of a file may be a single recording."""
    if most is None:
        return list(items)
    return [item for group in list_groups(items) for item in pick_evenly([one for one in items if one.group == group], most)]


def list_groups(items: Iterable[Item]) -> list[str]:
    """The groups that occur, unseen texts first, because a voice is made for these."""
    found = {item.group for item in items}
    return [group for group in (UNSEEN, SEEN, ALL) if group in found]


def pick_evenly(items: Sequence[ItemT], count: int) -> list[ItemT]:
    """`count` items at equal distances, or all."""
    if count >= len(items):
        return list(items)
    return [items[at * len(items) // count] for at in range(count)]


def normalize(text: str) -> str:
    """The words of a text without case and punctuation, to find equal texts."""
    return " ".join(WORD.findall(text.casefold()))


def _parse_item(key: str, row: Row, root: Path, speaker: str | None, reference: Path | None) -> Item:
    text = row.get("text")
    if not isinstance(text, str) or not text.strip():
        raise UserError('the row has no text to speak; add "text" to it, or remove it')
    spoken = clean_text(text)
    if not normalize(spoken.text):
        raise UserError(f"text {text!r} has no word in it; correct it, or remove the row")
    name = _parse_speaker(row, speaker)
    reference_text = row.get("ref_text") or None
    if not isinstance(reference_text, str | None):
        raise UserError(f"ref_text: expected the transcript of ref_audio as a text, found {reference_text!r}; correct it, or remove it")
    return Item(
        key=key,
        text=spoken.text,
        speaker=name,
        language=manifest.parse_language(str(row.get("language") or manifest.AUTO)),
        recording=_find_clip(root, row, "audio"),
        reference=_find_clip(root, row, "ref_audio") or reference,
        reference_text=reference_text,
        unspoken=spoken.describe_removed(),
    )


def _parse_speaker(row: Row, speaker: str | None) -> str:
    name = row.get("speaker") or speaker
    if not isinstance(name, str):
        raise UserError('the row has no speaker; add "speaker" to it, or give --speaker NAME for all such rows')
    return manifest.parse_speaker(name)


def _find_clip(root: Path, row: Row, column: str) -> Path | None:
    name = row.get(column)
    if not name:
        return None
    path = find_file(root, str(name))
    if not path.is_file():
        raise UserError(f"{column} {name}: no such file; restore it, or remove the column from the row")
    return path
