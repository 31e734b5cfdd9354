"""Renders a training sample as text, with the supervised tokens highlighted."""

from __future__ import annotations

import os
import sys
import unicodedata
from itertools import pairwise
from typing import Any

from overtone.finetune.recipe import Sample
from overtone.finetune.terminal import is_terminal

COLOUR = ("\x1b[1;32m", "\x1b[0m")
BRACKETS = ("⟦", "⟧")


def render_sample(sample: Sample, processor: Any) -> str:
    """`ids` and `supervised` [S] as text. Supervised tokens are green on a terminal; if there is none, or NO_COLOR is set, in brackets.

    Special tokens are shown. Control characters are escaped, or a text could send commands to the terminal.
    """
    ids, supervised = sample["ids"].tolist(), sample["supervised"].tolist()
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not is_terminal(sys.stdout)
    begin, end = BRACKETS if plain else COLOUR
    edges = [0, *(place for place in range(1, len(ids)) if supervised[place] != supervised[place - 1]), len(ids)]
    # As differences of longer and longer beginnings: tokenizers like SentencePiece drop the space at the beginning of what they decode.
    decoded = [processor.tokenizer.decode(ids[:edge], skip_special_tokens=False, clean_up_tokenization_spaces=False) for edge in edges]
    runs = [escape_controls(after[len(before) :]) for before, after in pairwise(decoded)]
    text = "".join(f"{begin}{run}{end}" if supervised[edge] else run for edge, run in zip(edges, runs, strict=False))
    return f"{text}\n({sum(supervised):,} of {len(ids):,} tokens are supervised)"


def escape_controls(text: str) -> str:
    """Return the text with control and format characters as escape sequences, except line breaks and tabs."""
    return "".join(
        character if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf") else ascii(character)[1:-1]
        for character in text
    )
