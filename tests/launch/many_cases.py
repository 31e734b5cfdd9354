"""Several short runs one after the other in one launched world, so that a matrix of cases costs one start.

usage (through accelerate launch): many_cases.py CASES.json, a list of {"recipe", "files", "overrides"}; each run writes its own log.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from finetune.config import resolve
from finetune.distributed import process_group
from finetune.recipe import find_recipe, load_recipe
from finetune.training.run import train

if __name__ == "__main__":
    joined = process_group.join((), Path())
    for case in json.loads(Path(sys.argv[1]).read_text()):
        folder = find_recipe(case["recipe"])
        recipe = load_recipe(folder)
        config = resolve(case["recipe"], recipe.Options, [folder / "config.yaml", *map(Path, case["files"])], case["overrides"].items())
        train(joined, config, recipe)
    process_group.leave()
