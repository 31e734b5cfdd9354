"""`overtone.json` of an exported folder: the recipe that made it, its checkpoint, base and data, and digests of the weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from overtone.finetune.recipe import CheckpointState
from overtone.version import __version__

CARD = "overtone.json"
"""Name of the file. A folder without it was not exported by this package."""


def locate_base(exported: Path, source: str) -> str:
    """Return the base that the file in an exported folder names: an absolute path if it is a folder, relative to the exported one; else a
    name."""
    folder = exported.resolve() / source
    return str(folder.resolve()) if folder.is_dir() else source


def encode_card(state: CheckpointState, origin: dict[str, Any], digests: dict[str, str], target: Path) -> bytes:
    """Return the content of the file. `state`: the checkpoint's state.json. `origin`: recipe, format, step and checkpoint. `digests`: of
    the weights' files. `target`: the exported folder, to which the folder of a base is relative: an absolute path would reveal this
    machine's."""
    base, source = state["base"], str(state["base"]["source"])
    if Path(source).is_absolute():
        base = {**base, "source": os.path.relpath(source, target.resolve())}
    facts = {**origin, "overtone": __version__, "base": base, "data": state["data"], "lora": state["lora"], "weights": digests}
    return json.dumps(facts, indent=1).encode()
