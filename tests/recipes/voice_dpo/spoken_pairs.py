"""Rows with pairs of clips, and an export to train on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.recipes.voice_clone.conftest import BOOKS, ENTRIES, TEXTS, Ready, make_export


def export_voice(ready: Ready, kind: str, folder: Path) -> Path:
    """The model of `ready` as an export."""
    return make_export(ready, kind, folder)


def make_pairs(speakers: tuple[str, ...] = ("anna", "bert"), frames: tuple[int, ...] = (4, 7), seed: int = 0) -> list[dict[str, Any]]:
    """Every speaker has a pair for every text: random codes, the chosen ones of small numbers; the second rejected clip was cut off."""
    chance = np.random.RandomState(seed)
    rows = []
    for name in speakers:
        for text, count in zip(TEXTS, frames, strict=True):
            rows.append(
                {
                    **{"text": text, "speaker": name, "language": "english"},
                    **{"chosen_codes": chance.randint(0, ENTRIES // 4, (count, BOOKS)).tolist(), "chosen_ended": True},
                    "rejected_codes": chance.randint(0, ENTRIES, (count + len(rows), BOOKS)).tolist(),
                    "rejected_ended": len(rows) != 1,
                }
            )
    return rows
