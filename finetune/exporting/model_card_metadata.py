"""Metadata in the model card (README.md) of an export, in the hub's form: a YAML header with license, languages, base and results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from overtone.finetune.config_sources import load_yaml
from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files

if TYPE_CHECKING:
    from pydantic import JsonValue

README = "README.md"
THIS_MODEL = "path/of/this/folder"
"""Placeholder in the examples of a card; the name of the exported model replaces it."""
HEADER = re.compile(r"---\n(?P<yaml>.*?)\n---(?:\n|\Z)", re.DOTALL)
KEPT_KEYS = ("license", "license_name", "license_link", "language")
"""Keys of the base's header that are also true of a model trained from it."""


def read_base_metadata(base: Path) -> dict[str, JsonValue]:
    """Return the `KEPT_KEYS` in the header of the base's model card; empty if there is none, or it cannot be read."""
    try:
        found, _ = split_card(input_files.read_text(base / README))
    except (OSError, ValueError, UserError):
        return {}
    kept: dict[str, JsonValue] = {}
    for key in KEPT_KEYS:
        value = found.get(key)
        if isinstance(value, str) or (isinstance(value, list) and value and all(isinstance(one, str) for one in value)):
            kept[key] = value
    return kept


def render_header(metadata: Mapping[str, object]) -> str:
    """Return the YAML header of a card, without keys that have no value."""
    known = {key: value for key, value in metadata.items() if value}
    return f"---\n{yaml.safe_dump(known, sort_keys=False, allow_unicode=True).strip()}\n---\n"


def make_model_index(model: str, task: str, results: Mapping[str, Mapping[str, float]]) -> list[dict[str, JsonValue]]:
    """Return the results in the hub's form. `task`: a pipeline tag of the hub. `results`: name of the data → type of the metric → value."""
    entries: list[JsonValue] = [
        {
            "task": {"type": task},
            "dataset": {"type": "private", "name": dataset},
            "metrics": [{"type": kind, "value": value} for kind, value in metrics.items()],
        }
        for dataset, metrics in results.items()
    ]
    return [{"name": model, "results": entries}]


def add_metadata(card: str, metadata: Mapping[str, object]) -> str:
    """Return a card with more keys in its header, which replace those of the same name. Raises `UserError` for a card without a header."""
    found, text = split_card(card)
    return render_header({**found, **metadata}) + text


def split_card(card: str) -> tuple[dict[str, JsonValue], str]:
    """Return the keys in the YAML header of a card, and the text after it. Raises `UserError` for a card without a header."""
    parts = HEADER.match(card)
    found = load_yaml(parts["yaml"], README) if parts else None
    if parts is None or not isinstance(found, dict):
        raise UserError("it does not begin with a YAML header; export the model again")
    return found, card[parts.end() :]


def name_model(card: bytes, model: str) -> bytes:
    """Return the card with the model's own name in its examples."""
    return card.replace(THIS_MODEL.encode(), model.encode())


def describe_target(target: Path | str) -> str:
    """Return the name of an export in its card: a relative path as it was given, otherwise only the last part, since a published card must
    not reveal folders of this machine."""
    absolute = "://" in str(target) or str(target).startswith(("/", "~")) or ".." in Path(target).parts
    return str(target).rstrip("/").rpartition("/")[2] if absolute else str(target)
