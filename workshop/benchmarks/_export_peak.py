"""Export a checkpoint, and report its memory and time without those of the imports. Run by export_memory.py.

usage: _export_peak.py CHECKPOINT FOLDER RECIPE, the last a name or a folder; prints one line of JSON, see `_watched.report_peak`
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from overtone.finetune.checkpointing import checkpoint, rank_shards
from overtone.finetune.exporting import export
from overtone.finetune.modeling import loading, lora_adapters, quantization
from overtone.finetune.recipe import find_recipe, load_recipe
from workshop.benchmarks import _watched

IMPORTED = (lora_adapters, checkpoint, loading, quantization, rank_shards)
"""Modules that `export` imports on its way, besides the recipe, so that they are loaded before the measurement begins."""


def main() -> None:
    torch.set_num_threads(1)
    place, target, recipe = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    torch.ones(8) @ torch.ones(8)
    load_recipe(find_recipe(recipe))
    _watched.report_peak(lambda: export.export(place, target, recipe=recipe))


if __name__ == "__main__":
    main()
