"""Common parts of the exports of all causal language models: the files that are copied from the base, and the names of weights."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from overtone.finetune.storage import strict_json
from overtone.finetune.storage.model_security import CONFIG, cleaned
from overtone.finetune.storage.tensor_layouts import TensorLayout
from overtone.recipes.language.modeling.causal_model import build_stock, find_path
from overtone.recipes.language.tokenization.tokenizer import name_whole_class
from overtone.recipes.transformers_weight_names import find_layouts

GENERATION, TOKENIZER = "generation_config.json", "tokenizer_config.json"
COPIED = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "tekken.json", "*.model"),
    *("chat_template*", "additional_chat_templates", "processor_config.json", "preprocessor_config.json", GENERATION),
    *("LICENSE*", "NOTICE*", "USE_POLICY*"),
)
"""Patterns of the files that are copied from the base. Other files are not: the base's folder may contain private ones."""


class StoredWeights(NamedTuple):
    """The base's tensors in an export."""

    layouts: dict[str, TensorLayout]
    """`ExportPlan.layouts`."""
    dropped: frozenset[str]
    """Tensors of the base that the export lacks: the output head's, if it is tied to the embedding. A copy would be untrained."""


def find_stored_weights(base: Path) -> StoredWeights:
    """Return how the parameters of a base are stored. Raises `UserError` for one that the installed transformers stores in another form."""
    whole = build_stock(base)
    layouts = find_layouts(whole, base)
    if not whole.config.get_text_config().tie_word_embeddings:
        return StoredWeights(layouts, frozenset())
    head = find_path(whole.get_output_embeddings(), whole) + ".weight"
    return StoredWeights(layouts, frozenset(layouts[head].parts() if head in layouts else {head}))


def config_without_code(base: Path) -> dict[str, bytes]:
    """Return config.json without references to Python files of the base's own (`auto_map`), which an export does not contain, and with the
    name of the class, which vLLM requires and some bases lack; empty if the base's file needs no change."""
    document, dropped = cleaned(base / CONFIG)
    if document.get("architectures"):
        return {CONFIG: encode_json(document)} if dropped else {}
    return {CONFIG: encode_json({**document, "architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[document["model_type"]]]})}


def complete_tokenizer(base: Path, written: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the written files, with a tokenizer_config.json by which transformers loads all of tokenizer.json, if the base's does not."""
    stored = cleaned(base / TOKENIZER)[0] if (base / TOKENIZER).is_file() else {}
    settings = strict_json.loads_object(written[TOKENIZER]) if TOKENIZER in written else stored
    found = name_whole_class(base, settings)
    return {**written} if found == settings else {**written, TOKENIZER: encode_json(found)}


def list_copied_files(base: Path, replaced: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names of the base's files to copy; without those of the patterns that contain a word of `replaced`."""
    patterns = [pattern for pattern in COPIED if not any(word in pattern for word in replaced)]
    return tuple(sorted({path.name for pattern in patterns for path in base.glob(pattern)}))


def encode_json(value: Any) -> bytes:
    """Return a JSON file for people."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
