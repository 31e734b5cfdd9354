"""Several processes of a script, started as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def launch(script: str, ranks: int, folder: Path, leaves: str, *arguments: object) -> list[dict[str, Any]]:
    """Run workshop/benchmarks/`script` FOLDER ARGUMENTS on gloo; returns what its ranks leave in `folder` as `<leaves>-<ranks>.json`."""
    accelerate, config = Path(sys.executable).parent / "accelerate", ROOT / "configs" / "cpu.yaml"
    start = [
        accelerate,
        "launch",
        "--config_file",
        config,
        "--num_processes",
        ranks,
        ROOT / "workshop" / "benchmarks" / script,
        folder,
        *arguments,
    ]
    subprocess.run([str(word) for word in start], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, stdout=sys.stderr)
    found: list[dict[str, Any]] = json.loads((folder / f"{leaves}-{ranks}.json").read_text())
    return found
