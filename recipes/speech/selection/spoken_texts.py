"""The texts that a selection speaks: some of each kind that voices break on, chosen by a fixed rule."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep import manifest
from finetune.errors import UserError
from recipes.speech.cli.text_inputs import read_lines
from recipes.speech.evaluation.evaluation_texts import Check, Item, normalize, pick_evenly
from recipes.speech.interface import SpeechRequest

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
    """What was found of each kind, and what was not."""


def choose_texts(items: Sequence[Item], most: int) -> SpokenTexts:
    """At most `most` different texts, in the order of `items`.

    Of each kind in `KINDS` a sixth (at least one), at equal distances in the file, and others for the rest. The short and the long ones are
    the shortest and the longest by characters, because what is short depends on the data. A text is chosen once; duplicates by another
    speaker are different texts.
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
    """What the rule found: the numbers and lengths of each kind, and the kinds that the data lacks."""
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


def read_text_file(path: Path, rows: Sequence[Item], speaker: str | None, check: Check) -> list[Item]:
    """The texts of `--text-file` as items. A line without a speaker is for `speaker`, or for the only one in `rows`; its language is
    that of the speaker's rows. Raises `UserError` with the line if neither is known, and for an item that `check` refuses."""
    known = {item.speaker for item in rows}
    usual = speaker or (next(iter(known)) if len(known) == 1 else None)
    items = []
    for line in read_lines(path, SpeechRequest("", usual)):
        request = line.request
        if request.speaker is None:
            raise UserError(f"{line.place}: who speaks it? The data has {', '.join(sorted(known))}; give --speaker NAME")
        if not normalize(request.text):
            raise UserError(f"{line.place}: {request.text!r} has no word in it; correct or remove the line")
        name = manifest.parse_speaker(request.speaker)
        languages = {item.language for item in rows if item.speaker == name}
        language = request.language or (next(iter(languages)) if len(languages) == 1 else manifest.AUTO)
        items.append(Item(f"text-{line.number:04d}", request.text, name, manifest.parse_language(language)))
        try:
            check(items[-1])
        except UserError as error:
            raise UserError(f"{line.place}: {error}") from None
    return items
