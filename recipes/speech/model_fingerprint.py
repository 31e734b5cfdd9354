"""Identity of an exported model: whether audio or answers of an earlier start are of the same weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def compute_model_key(folder: Path) -> str:
    """Digest that changes with the model, without reading the weights: names, sizes, and modification and change times of its files."""
    stats = [(path.name, path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()]
    found = [(name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()
