"""The files of an export that are the same for every causal language model: what is copied from the base, and the head if it is tied."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from finetune.storage.model_security import CONFIG, cleaned
from recipes import transformers_meta_models
from recipes.language.causal_model import find_path, read_config

GENERATION = "generation_config.json"
COPIED = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "tekken.json", "*.model"),
    *("chat_template*", "additional_chat_templates", "processor_config.json", "preprocessor_config.json", GENERATION),
    *("LICENSE*", "NOTICE*", "USE_POLICY*"),
)
"""Patterns of the files that are copied from the base. Other files are not: the base's folder may contain private ones."""


def find_tied_head(base: Path) -> str | None:
    """Name of the output head's weight if it is tied to the embedding; otherwise None. A copy that the base stores would be untrained."""
    from transformers import AutoModelForCausalLM

    config = read_config(base)
    if not config.get_text_config().tie_word_embeddings:
        return None
    whole = transformers_meta_models.build_on_meta(lambda: AutoModelForCausalLM.from_config(config), base)
    return find_path(whole.get_output_embeddings(), whole) + ".weight"


def config_without_code(base: Path) -> dict[str, bytes]:
    """config.json without references to Python files of the base's own (`auto_map`); empty if it has none. An export does not contain these
    files, and its users must not need to trust any."""
    document, dropped = cleaned(base / CONFIG)
    return {CONFIG: encode_json(document)} if dropped else {}


def list_copied_files(base: Path, replaced: Collection[str] = ()) -> tuple[str, ...]:
    """Names of the base's files to copy; without those of the patterns that contain a word of `replaced`."""
    patterns = [pattern for pattern in COPIED if not any(word in pattern for word in replaced)]
    return tuple(sorted({path.name for pattern in patterns for path in base.glob(pattern)}))


def encode_json(value: Any) -> bytes:
    """A JSON file for people."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
