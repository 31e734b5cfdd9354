"""Downloads from the Hugging Face hub: data files of one commit of a repository, never code.

What comes is a folder of a model like any other, and passes the gate (`model_gate`) before a library reads it.
"""

from __future__ import annotations

import re
from pathlib import Path

DATA = re.compile(r".*\.(safetensors|json|txt|model|jinja|tiktoken)|README\.md|LICENSE\*?|pytorch_model\.bin")
"""Patterns that may be asked for. `pytorch_model.bin`: of speaker models, most of which have nothing else; only
`model_gate.load_pickled_weights` reads it."""
COMMIT = re.compile(r"[0-9a-f]{40}")


def download(name: str, revision: str | None, patterns: list[str]) -> Path:
    """The folder with the files of a repository that match `patterns`, all of the commit that `revision` (default: main) is now.

    Raises what the hub's client raises.
    """
    if refused := [pattern for pattern in patterns if not DATA.fullmatch(pattern)]:
        raise ValueError(f"{refused[0]!r} may match code or pickles; name the types of data files")
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))


def commit_of(folder: Path) -> str | None:
    """The commit that a downloaded folder holds, 40 hexadecimal digits; None for any other folder."""
    return folder.name if folder.parent.name == "snapshots" and COMMIT.fullmatch(folder.name) else None
