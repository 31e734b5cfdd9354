"""Viterbi alignment of tokens with the emissions of a CTC model (Graves et al. 2006, "Connectionist Temporal Classification", section 4).

Between all tokens, and before the first and after the last, the path may emit blanks; between two equal tokens it must. All states of a
frame are advanced together; the back pointers take one byte per state and frame, 1.5 MB for 30 s and 500 characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Emissions = NDArray[np.float32]
"""[T, V] log-probabilities of V tokens in T frames."""


class TokenSpan(NamedTuple):
    """Token number `position` of the text is emitted in frames `start:stop`."""

    position: int
    start: int
    stop: int


class TokenPath(NamedTuple):
    """The best path through the tokens."""

    log_prob: float
    """Sum of the log-probabilities of all frames."""
    spans: tuple[TokenSpan, ...]


SKIP = 3
"""Step of a path that leaves out a passage; smaller steps are the number of states by which it advances."""


def align_tokens(
    emissions: Emissions, tokens: Sequence[int], blank: int, *, part: bool = False, starts: Sequence[int] = ()
) -> TokenPath | None:
    """Return the most probable path that emits `tokens` and blanks; None if there are too few frames.

    `part`: emit any run of neighbouring tokens instead of all of them. `starts`: tokens, ascending, at which passages begin; the path may
    go from the blank before one of them to the blank before the next.
    """
    frames = len(emissions)
    states = np.full(2 * len(tokens) + 1, blank)
    states[1::2] = tokens
    skips = np.zeros(len(states), bool)  # into a token, over the blank before it
    skips[3::2] = states[3::2] != states[1:-2:2]
    best = np.full(len(states), -np.inf)
    reached = len(states) if part else 2
    if not frames:
        return None
    best[:reached] = emissions[0, states[:reached]]
    steps = np.zeros((frames, len(states)), np.uint8)
    choices = np.full((4, len(states)), -np.inf)
    before, behind = 2 * np.asarray(starts[:-1], int), 2 * np.asarray(starts[1:], int)
    skipped = dict(zip(behind.tolist(), before.tolist(), strict=True))
    for frame in range(1, frames):
        choices[0] = best
        choices[1, 1:] = best[:-1]
        choices[2, 2:] = np.where(skips[2:], best[:-2], -np.inf)
        choices[SKIP, behind] = best[before]
        steps[frame] = choices.argmax(axis=0)
        best = choices.max(axis=0) + emissions[frame, states]
    last = int(best.argmax()) if part else len(states) - 2 + int(best[-1] >= best[-2]) if len(tokens) else 0
    if not np.isfinite(best[last]):
        return None
    return TokenPath(float(best[last]), _trace_spans(steps, last, skipped))


def score_free_path(emissions: Emissions) -> float:
    """Return the log-probability of the best path without a text: the sum of the best token of each frame."""
    return float(emissions.max(axis=1).sum(dtype=np.float64))


def _trace_spans(steps: NDArray[np.uint8], state: int, skipped: Mapping[int, int]) -> tuple[TokenSpan, ...]:
    """Return the tokens on the path that ends in `state`. `skipped`: state behind a passage that may be left out → state before it."""
    spans: list[TokenSpan] = []
    for frame in range(len(steps) - 1, -1, -1):
        if state % 2:
            position = state // 2
            if spans and spans[-1].position == position:
                spans[-1] = spans[-1]._replace(start=frame)
            else:
                spans.append(TokenSpan(position, frame, frame + 1))
        step = int(steps[frame, state])
        state = skipped[state] if step == SKIP else state - step
    return tuple(reversed(spans))
