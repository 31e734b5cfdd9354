"""Part `recipes`: whether those that part `smoke` does not use train on a GPU, each in a process of its own, on the smallest models."""

from __future__ import annotations

from functools import partial

from workshop.benchmarks._gpu_figures import Figure, Part, Table
from workshop.benchmarks._gpu_smoke import COLUMNS, LAUNCH, STEPS, either

KINDS = ("csm", "codec_lm", "image_classification")
FIGURES = tuple(Figure(f"recipe {kind}", 20.0, partial(either, f"recipe {kind}", LAUNCH, kind, {})) for kind in KINDS)
NOTE = f"Tiny models, {STEPS} steps each, by accelerate launch. FOLDER/recipes.log of --work has what they print."
PART = Part((Table(COLUMNS, FIGURES, NOTE),), prepare=lambda _: None, preparing=0.0)
