"""The files of an export: weights under their released names, and everything else that AutoModelForCausalLM and AutoTokenizer read."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, Literal

from finetune.checkpointing.checkpoint_metadata import JsonPart, check_recipe_state
from finetune.exporting.model_metadata import read_base_metadata
from finetune.recipe import ExportPlan
from finetune.storage.model_security import CONFIG, cleaned
from recipes.language.causal_model import find_path, read_config
from recipes.language.stop_tokens import find_stop_ids
from recipes.language.tokenizer import load_tokenizer

from .model_card import model_card

TEMPLATE, TOKENIZER, GENERATION = "chat_template.jinja", "tokenizer_config.json", "generation_config.json"
COPIED = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "tekken.json", "*.model"),
    *("chat_template*", "additional_chat_templates", "processor_config.json", "preprocessor_config.json", GENERATION),
    *("LICENSE*", "NOTICE*", "USE_POLICY*"),
)
"""Patterns of the files that are copied from the base. Other files are not: the base's folder may contain private ones."""


class SftState(JsonPart):
    """The recipe's part of a checkpoint's state, as `recipe.make_state` writes it."""

    supervise: Literal["assistant", "last", "everything"]
    chat_template: str | None


def plan_export(base: Path, state: dict[str, Any]) -> ExportPlan:
    """`state`: see `SftState`. Raises `UserError` for a base that llm_sft cannot train."""
    check_recipe_state(SftState, state)
    tokenizer, head = load_tokenizer(base, None), find_tied_head(base)
    template: str | None = state["chat_template"]
    if template is not None:
        tokenizer.chat_template = template
    copied = list_copied_files(base, template is not None)
    written = {
        CONFIG: (base / CONFIG).read_bytes(),
        **config_without_code(base),
        **generation_config(base, tokenizer),
        **({} if template is None else template_files(base, template)),
    }
    return ExportPlan(
        keep=lambda name: name != head,
        files=written,
        copy=tuple(name for name in copied if name not in written),
        readme=partial(model_card, inherited=read_base_metadata(base), chats=tokenizer.chat_template is not None),
    )


def find_tied_head(base: Path) -> str | None:
    """Name of the output head's weight if it is tied to the embedding; otherwise None. A copy that the base stores would be untrained."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    config = read_config(base)
    if not config.get_text_config().tie_word_embeddings:
        return None
    with init_empty_weights():
        whole = AutoModelForCausalLM.from_config(config)
    return find_path(whole.get_output_embeddings(), whole) + ".weight"


def generation_config(base: Path, tokenizer: Any) -> dict[str, bytes]:
    """generation_config.json with the tokens at which the model learned to stop; empty if the base's file has them."""
    path, config = base / GENERATION, cleaned(base / CONFIG)[0]
    settings = cleaned(path)[0] if path.is_file() else {name: config[name] for name in ("bos_token_id", "eos_token_id") if name in config}
    known = settings.get("eos_token_id")
    needed = find_stop_ids(tokenizer, known)
    return {} if needed in (known, [known]) else {GENERATION: _json({**settings, "eos_token_id": needed})}


def config_without_code(base: Path) -> dict[str, bytes]:
    """config.json without references to Python files of the base's own (`auto_map`); empty if it has none. An export does not contain these
    files, and its users must not need to trust any."""
    document, dropped = cleaned(base / CONFIG)
    return {CONFIG: _json(document)} if dropped else {}


def template_files(base: Path, template: str) -> dict[str, bytes]:
    """A chat template in all files that have one: its own file, and the older field of tokenizer_config.json if the base uses it."""
    settings = cleaned(base / TOKENIZER)[0] if (base / TOKENIZER).is_file() else {}
    field = {TOKENIZER: _json({**settings, "chat_template": template})} if "chat_template" in settings else {}
    return {TEMPLATE: template.encode(), **field}


def list_copied_files(base: Path, other_template: bool) -> tuple[str, ...]:
    """Names of the base's files to copy; without its chat templates if `other_template` replaces them."""
    patterns = [pattern for pattern in COPIED if not (other_template and "chat_template" in pattern)]
    return tuple(sorted({path.name for pattern in patterns for path in base.glob(pattern)}))


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
