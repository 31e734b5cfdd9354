"""Comparison of a decode loop with stock generation, for the benchmarks of the recipes that generate speech codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks import _timing

TEXT = "She counted the boats in the harbour and wrote the number down."
Codes = list[list[list[int]]]
"""[texts, frames, codebooks]."""


def compare(ways: Mapping[str, Callable[[], Codes]], frames: int, rounds: int) -> list[str]:
    """Frames per second of `stock` and of `here`, and their ratio, as cells. `frames`: of all texts together. Exits if the codes differ."""
    if ways["stock"]() != ways["here"]():
        raise SystemExit("the two ways generate different codes, so their times are not comparable")
    taken = _timing.medians(ways, rounds)
    return [*(f"{frames / taken[way]:.1f}" for way in ("stock", "here")), f"{taken['stock'] / taken['here']:.1f}"]
