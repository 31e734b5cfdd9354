"""Deterministic train/validation split of conversations, by a hash of their first question."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable

from overtone.data_prep.chats.chat_messages import ChatRow

LEAST_VALIDATION = 5
"""Validation rows of a dataset of 50 rows and more; of smaller ones a tenth."""
FEW_ROWS = 5
"""Rows of a dataset that is too small to spare any."""
ValidationFilter = Callable[[float], bool]
"""Returns whether conversations at this split position (see `compute_split_position`) go to validation."""


def compute_split_position(row: ChatRow) -> float:
    """Return a number from 0 to 1 that depends only on the first question, so that adding rows does not move others between the splits.

    Conversations with the same first question go to the same split; otherwise validation answers would be in the training data.
    """
    turns = row.get("messages") or row.get("text") or row["prompt"]
    plain = isinstance(turns, str)
    question = turns if plain else next((turn.get("content") for turn in turns if turn["role"] == "user"), turns[0].get("content"))
    return int.from_bytes(hashlib.sha256(json.dumps(question).encode()).digest()[:7], "big") / 2**56


def count_least_validation(rows: int) -> int:
    """Return the fewest validation rows of a dataset: without any, the best step of a run is not known; with one or two, chance decides
    which step that is."""
    return min(LEAST_VALIDATION, max(2, rows // 10)) if rows > FEW_ROWS else 0


def make_count_filter(shares: Iterable[float], rows: int) -> ValidationFilter:
    """Return a filter for at most `rows` rows, in ascending position, skipping groups with the same first question that no longer fit."""
    chosen: set[float] = set()
    for share, count in sorted(Counter(shares).items()):
        if count <= rows:
            chosen.add(share)
            rows -= count
    return chosen.__contains__
