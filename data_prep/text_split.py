"""Which conversations are kept apart to validate on."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from data_prep.text_shapes import Row

Validates = Callable[[float], bool]
"""Whether conversations of this share (see `share_of`) are validated on."""


def share_of(row: Row) -> float:
    """A number from 0 to 1 that depends on nothing but how a conversation begins, so that added rows move no other to the other side.

    Those that begin alike, up to the first question, go the same way, or validation would know answers.
    """
    return int.from_bytes(hashlib.sha256(json.dumps(_opening(row)).encode()).digest()[:7], "big") / 2**56


def _opening(row: Row) -> Any:
    turns = row.get("messages") or row["prompt"]
    if isinstance(turns, str):
        return turns
    return next((turn.get("content") for turn in turns if turn["role"] == "user"), turns[0].get("content"))


def below(share: float) -> Validates:
    """A part of all conversations."""
    return lambda found: found < share


def smallest(shares: Iterable[float], rows: int) -> Validates:
    """At most so many rows: by rising share, and passing over those that begin alike and together no longer fit."""
    chosen: set[float] = set()
    for share, count in sorted(Counter(shares).items()):
        if count <= rows:
            chosen.add(share)
            rows -= count
    return chosen.__contains__
