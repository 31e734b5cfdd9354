"""Share of the computed positions that are speech: micro-batches with a budget of positions, compared with fixed numbers of clips."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from overtone.finetune.data.cached_samples import Ids
from overtone.recipes.qwen3_tts.model.config_factory import FRAME_RATE
from workshop.benchmarks import _table
from workshop.benchmarks.packing_utilisation import computed, side_by_side

KINDS = {"one sentence each": (1.3, 0.45, 1.0, 12.0), "audiobook": (2.1, 0.55, 1.0, 30.0)}
"""Mean and standard deviation of the logarithm of a clip's seconds (medians of 3.7 and 8.2 s), and the shortest and longest kept."""
TEXT = 4.2
"""Positions of text for each second of speech: 14 characters, at 3.3 to a token of Qwen's tokenizer."""
LAYOUT = 14
"""Positions of every clip that are neither: its header, its speaker and its ends."""
CLIPS = (2, 8, 32)
COLUMNS = ("clips", "micro_tokens", "by budget", "the same budget, in order", *(f"{count} clips, padded" for count in CLIPS))
NOTE = (
    "Positions of text and speech over all positions, one epoch in its shuffled order, log-normal lengths. By `train.micro_tokens`: "
    "clips of about one length lie side by side within `data.window` of 1,024. In order: clips as they come, up to the same budget. Fixed "
    "numbers of clips, padded to the longest, are how the model's makers' script batches (2 by default). The predictor of codebooks 1 to "
    "15 is not counted, since padding costs it nothing in either."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    count = 4096 if flags.quick else 32768
    _table.publish("voice_batches", flags, COLUMNS, [line(kind, budget, count) for kind in KINDS for budget in (1024, 2048, 4096)], NOTE)


def line(kind: str, budget: int, count: int) -> list[object]:
    lengths = lengths_of(kind, count)
    tokens = int(lengths.sum())
    spent = [computed(lengths, budget, 1024, packing=False), side_by_side(lengths, budget), *(padded(lengths, clips) for clips in CLIPS)]
    return [kind, f"{budget:,}", *(f"{100 * tokens / positions:.1f} %" for positions in spent)]


def lengths_of(kind: str, count: int) -> Ids:
    """Positions of clips, as `layout` arranges them."""
    mean, deviation, shortest, longest = KINDS[kind]
    seconds = np.random.default_rng(0).lognormal(mean, deviation, size=2 * count)
    kept = seconds[(seconds >= shortest) & (seconds <= longest)][:count]
    return (np.ceil(kept * FRAME_RATE) + np.ceil(kept * TEXT) + LAYOUT).astype(np.int64)


def padded(lengths: Ids, clips: int) -> int:
    """Positions of micro-batches of so many clips as they come."""
    batches = np.split(lengths, range(clips, len(lengths), clips))
    return sum(int(batch.max()) * len(batch) for batch in batches)


if __name__ == "__main__":
    main()
