"""Explains why what was given as a model is none: a GGUF file, a folder with such files, or an adapter."""

from __future__ import annotations

from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.storage.gguf_files import is_gguf, read_header
from overtone.finetune.storage.model_security import read_object, shorten

ADAPTER = "adapter_config.json"
ORIGINS = ("general.base_model.0.repo_url", "general.source.repo_url", "general.source.url", "general.base_model.0.name", "general.name")
"""Keys in a GGUF that name the model it was made from; the first key that exists is used."""


def explain_foreign_model(place: Path) -> str | None:
    """Return why a file or folder is not a model, and what to do; None for anything but a GGUF or an adapter."""
    if place.is_file():
        return _explain_gguf(place) if is_gguf(place) else None
    if (place / ADAPTER).is_file():
        return _explain_adapter(place)
    found = next((path for path in sorted(place.glob("*.gguf")) if is_gguf(path)), None)
    return None if found is None else _explain_gguf(found)


def _explain_gguf(path: Path) -> str:
    try:
        metadata = read_header(path).metadata
    except UserError:
        metadata = {}
    origin = next((value for key in ORIGINS if isinstance(value := metadata.get(key), str) and value), None)
    named = "" if origin is None else f", which it calls {shorten(origin)}"
    return (
        f"{path.name} is a GGUF file, for llama.cpp and Ollama: its weights are rounded, and its tokenizer and config are in another form. "
        f"Give the folder or the hub name of the model that it was made from{named}"
    )


def _explain_adapter(folder: Path) -> str:
    try:
        base = read_object(folder / ADAPTER).get("base_model_name_or_path")
    except UserError:
        base = None
    named = f" of {shorten(base)}" if isinstance(base, str) and base else ""
    return (
        f"it has a LoRA adapter{named}, not a model. Merge it into its base first: export its run again without --adapter-only, or, for an "
        "adapter from another place, use peft's merge_and_unload"
    )
