"""Part `serving`: how long the clients of a speech server wait, beside the stock package, as `serving_latency` measures it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from workshop.benchmarks import serving_latency
from workshop.benchmarks._gpu import Bench
from workshop.benchmarks._gpu_figures import Cells, Figure, Part, Table
from workshop.benchmarks._gpu_speech import LABELS, make_models, speaker
from workshop.benchmarks.serving_latency import COLUMNS, QUICK, Pattern

PATTERN = Pattern(4, (25, 63, 125), 0.5)
"""Speech of 2, 5 and 10 s."""
CLIENTS = (1, 4, 16, 32)
NOTE = (
    "Random weights of the released shapes with a tiny codec, bf16. Each client sends {each} requests of {frames} frames at random, with "
    "pauses of {pause:g} s on average; the batch has a row for each client. First sound: from the request, with the time in the queue. The "
    "stock package has no stream: its first sound is its last."
)


def waits(label: str, bench: Bench) -> Sequence[Cells]:
    """Rows of one model."""
    counts, pattern = ((1, 2), QUICK) if bench.dry else (CLIENTS, PATTERN)
    return serving_latency.measure(label, speaker(bench, label), counts, pattern)


FIGURES = tuple(Figure(f"{label}: clients", 150.0, partial(waits, label), dry=label == LABELS[0]) for label in LABELS)
PART = Part((Table(COLUMNS, FIGURES, NOTE.format(**vars(PATTERN))),), prepare=make_models, preparing=110.0)
