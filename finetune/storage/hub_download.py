"""Downloads from the Hugging Face Hub: data files of one commit of a repository, never code.

A downloaded folder is treated like any other model folder: finetune/storage/model_security.py cleans it before a library reads it.
"""

from __future__ import annotations

import re
from pathlib import Path

DATA = re.compile(r".*\.(safetensors|json|txt|model|jinja|tiktoken)|README\.md|LICENSE\*?|pytorch_model\.bin")
"""Allowed patterns. `pytorch_model.bin`: for speaker models and codecs that have no other format; only `load_pickled_weights` of
finetune/storage/model_security.py reads it."""
COMMIT = re.compile(r"[0-9a-f]{40}")


def download(name: str, revision: str | None, patterns: list[str]) -> Path:
    """Download the files that match `patterns`, at the commit to which `revision` (default: main) resolves; returns their folder.

    Raises the exceptions of huggingface_hub.
    """
    if refused := [pattern for pattern in patterns if not DATA.fullmatch(pattern)]:
        raise ValueError(f"{refused[0]!r} may match code or pickles; give patterns of data files only")
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))


def download_dataset(name: str, patterns: list[str]) -> Path:
    """Download the files of a dataset repository that match `patterns`, at its newest commit; returns their folder.

    Raises the exceptions of huggingface_hub.
    """
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, repo_type="dataset", allow_patterns=patterns, ignore_patterns=["dataset_info*.json", ".*"]))


def commit_of(folder: Path) -> str | None:
    """Return the commit of a downloaded folder, 40 hexadecimal digits; None for any other folder."""
    return folder.name if folder.parent.name == "snapshots" and COMMIT.fullmatch(folder.name) else None


def display_name(folder: Path) -> str:
    """Return the name of a model's folder, for people: of a downloaded one that of its repository, since its folder is named after the
    commit."""
    if commit_of(folder) is not None and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.resolve().name
