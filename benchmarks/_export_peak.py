"""Export a checkpoint and tell the peak of anonymous memory above what the imports took. Run by export_memory.py.

usage: _export_peak.py CHECKPOINT FOLDER; prints one line of JSON
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.order import anonymous_kib
from finetune import adapters, checkpoint, export, models, quantized, shards
from finetune.recipe import find_recipe, load_recipe

IMPORTED = (adapters, checkpoint, models, quantized, shards)
"""What `export` imports on its way, besides the recipe, so that it stands before the measure begins."""


def main() -> None:
    torch.set_num_threads(1)
    place, target = Path(sys.argv[1]), Path(sys.argv[2])
    torch.ones(8) @ torch.ones(8)
    load_recipe(find_recipe(checkpoint.read_state(checkpoint.find(place))["recipe"]))
    seen, done = [anonymous_kib()], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            seen.append(anonymous_kib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    export.export(place, target)
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    print(json.dumps({"above_imports": (max(seen) - seen[0]) * 1024, "seconds": seconds, "looks": len(seen)}))


if __name__ == "__main__":
    main()
