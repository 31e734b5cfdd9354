"""`overtone.json` of an exported folder: the recipe that made it, its checkpoint, base and data, and digests of the weights."""

from __future__ import annotations

import json
from typing import Any

from finetune import __version__

CARD = "overtone.json"
"""Name of the file. A folder without it was not exported by this package."""


def encode_card(state: dict[str, Any], origin: dict[str, Any], digests: dict[str, str]) -> bytes:
    """Content of the file. `state`: the checkpoint's state.json. `origin`: recipe, format, step and checkpoint. `digests`: of the weights'
    files."""
    facts = {**origin, "overtone": __version__, "base": state["base"], "data": state["data"], "lora": state["lora"], "weights": digests}
    return json.dumps(facts, indent=1).encode()
