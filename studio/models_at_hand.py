"""Finds models that are on this machine already, for the lists of pages. Reads names of folders only."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from overtone.data_prep.transcription.demo_whisper import NAME as DEMO_WHISPER
from overtone.data_prep.transcription.faster_whisper_engine import PREFIX
from overtone.finetune.storage import demo_models
from overtone.finetune.storage.folder_handles import cache_home

FASTER = "faster-whisper-"


def list_whispers() -> list[str]:
    """Return names for `--whisper`: those in the cache of Whisper, of faster-whisper and of transformers, and that of the demo."""
    found = [path.removesuffix(".pt") for path in list_names(cache_home() / "whisper") if path.endswith(".pt")]
    for model in list_hub_models():
        _, _, name = model.partition("/")
        if name.startswith(FASTER):
            found.append(PREFIX + name.removeprefix(FASTER))
        elif name.startswith("whisper-"):
            found.append(model)
    return sorted({*found, *([DEMO_WHISPER] if demo_models.find_data() is not None else [])})


def list_hub_models() -> list[str]:
    """Return the models in the cache of the hub, as `owner/name`."""
    home = Path(os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or cache_home() / "huggingface") / "hub")
    return [name.removeprefix("models--").replace("--", "/", 1) for name in list_names(home) if name.startswith("models--")]


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; none if it cannot be read."""
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))  # noqa: PTH208 - the names alone
    return []
