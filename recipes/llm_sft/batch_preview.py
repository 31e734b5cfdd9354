"""A sample as a person reads it, with what is learned of it standing out."""

from __future__ import annotations

import os
import sys
import unicodedata
from itertools import pairwise
from typing import Any

from finetune.recipe import Sample

COLOUR = ("\x1b[1;32m", "\x1b[0m")
BRACKETS = ("⟦", "⟧")


def show(sample: Sample, processor: Any) -> str:
    """`ids` and `supervised` [S] as text: supervised tokens in green on a terminal, between brackets elsewhere or if NO_COLOR is set.

    Special tokens are written out. Control characters are too, or a text could command the terminal.
    """
    ids, supervised = sample["ids"].tolist(), sample["supervised"].tolist()
    begin, end = marks()
    edges = [0, *(place for place in range(1, len(ids)) if supervised[place] != supervised[place - 1]), len(ids)]
    # By difference, not run by run: a tokenizer of SentencePiece's kind drops the space before whatever it is asked to spell.
    spelled = [processor.tokenizer.decode(ids[:edge], skip_special_tokens=False, clean_up_tokenization_spaces=False) for edge in edges]
    runs = [visible(after[len(before) :]) for before, after in pairwise(spelled)]
    text = "".join(f"{begin}{run}{end}" if supervised[edge] else run for edge, run in zip(edges, runs, strict=False))
    return f"{text}\n({sum(supervised):,} of {len(ids):,} tokens are supervised)"


def marks() -> tuple[str, str]:
    """What stands before and behind supervised text, as the reader's terminal has it."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return BRACKETS if plain else COLOUR


def visible(text: str) -> str:
    return "".join(
        character if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf") else ascii(character)[1:-1]
        for character in text
    )
