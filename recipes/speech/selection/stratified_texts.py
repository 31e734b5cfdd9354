"""The texts that a selection speaks: some of each kind that voices break on, chosen by a fixed rule."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from overtone.recipes.speech.evaluation.evaluation_items import Item, normalize, pick_evenly

SHORT, NUMBER, QUESTION, LONG, OTHER = "short", "number", "question", "long", "other"
KINDS = (SHORT, NUMBER, QUESTION, LONG)
"""Kinds that the rule makes sure of."""
SHARE = 6
"""Each of these kinds gets a sixth of the texts, and the others a third."""
ENDS_QUESTION = re.compile(r"[?？؟\u037e][\s\"'”’»」』)\]]*$")
"""The marks of most scripts; the Greek one looks like a semicolon and is U+037E."""


@dataclass(frozen=True)
class SpokenTexts:
    """The chosen texts."""

    items: list[Item]
    kinds: Mapping[str, str]
    """Key of an item → the kind that it was chosen for."""
    notes: list[str]
    """Notes on the kinds of texts that were found, and on those that were not."""


def choose_texts(items: Sequence[Item], most: int) -> SpokenTexts:
    """Choose at most `most` different texts, in the order of `items`.

    A sixth of the texts (at least one) is of each kind in `KINDS`, at equal distances in the file; the rest are other texts. Short and long
    texts are the shortest and the longest by characters in this file, because no fixed length is short in all data. A text is chosen once;
    duplicates by another speaker are different texts.
    """
    different = list({(item.speaker, normalize(item.text)): item for item in reversed(items)}.values())[::-1]
    quota, chosen = max(1, most // SHARE), dict[str, str]()
    by_length = sorted(different, key=lambda item: (len(item.text), item.key))
    numbers = [item for item in different if any(character.isdigit() for character in item.text)]
    questions = [item for item in different if ENDS_QUESTION.search(item.text)]
    for kind, found in ((NUMBER, numbers), (QUESTION, questions), (SHORT, by_length), (LONG, by_length[::-1])):
        others = [item for item in found if item.key not in chosen]
        for item in others[:quota] if kind in (SHORT, LONG) else pick_evenly(others, quota):
            chosen[item.key] = kind
    rest = pick_evenly([item for item in different if item.key not in chosen], max(most - len(chosen), 0))
    chosen = dict(list(chosen.items())[:most]) | {item.key: OTHER for item in rest}
    kept = [item for item in different if item.key in chosen]
    return SpokenTexts(kept, chosen, describe_texts(kept, chosen, len(different)))


def describe_texts(kept: Sequence[Item], kinds: Mapping[str, str], available: int) -> list[str]:
    """Return what the rule found: the numbers and lengths of each kind, and the kinds that the data lacks."""
    parts = []
    for kind in (*KINDS, OTHER):
        lengths = [len(item.text) for item in kept if kinds[item.key] == kind]
        if lengths:
            parts.append(f"{len(lengths)} {kind} ({min(lengths)} to {max(lengths)} characters)")
    notes = [f"Texts: {len(kept)} of {available}: {', '.join(parts)}."]
    missing = [name for kind, name in ((NUMBER, "a number in digits"), (QUESTION, "a question")) if kind not in kinds.values()]
    if missing:
        notes.append(f"No text has {' or '.join(missing)}: how the voice reads these was not measured; --text-file can add some.")
    return notes
