"""What an export holds: the trained weights under their released names, and what AutoModelForCausalLM and AutoTokenizer read besides."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, Literal

from finetune.checkpointing.checkpoint_metadata import JsonPart, check_recipe_state
from finetune.config_sources import load_yaml
from finetune.errors import UserError
from finetune.recipe import ExportPlan
from finetune.storage.model_security import CONFIG, cleaned
from recipes.language.causal_model import path_of, read_config
from recipes.language.stop_tokens import stop_ids
from recipes.language.tokenizer import load_tokenizer

from .model_card import model_card

TEMPLATE, TOKENIZER, GENERATION = "chat_template.jinja", "tokenizer_config.json", "generation_config.json"
COPIED = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "tekken.json", "*.model"),
    *("chat_template*", "additional_chat_templates", "processor_config.json", "preprocessor_config.json", GENERATION),
    *("LICENSE*", "NOTICE*", "USE_POLICY*"),
)
"""By name and not all there is: a folder that somebody trains from may hold more than may be passed on."""


class Trained(JsonPart):
    """What `recipe.state_of` writes."""

    supervise: Literal["assistant", "last", "everything"]
    chat_template: str | None


def plan(base: Path, state: dict[str, Any]) -> ExportPlan:
    """`state`: `recipe.state_of`. Raises `UserError` for a base that llm_sft cannot train."""
    check_recipe_state(Trained, state)
    tokenizer, head = load_tokenizer(base, None), tied_head(base)
    template: str | None = state["chat_template"]
    if template is not None:
        tokenizer.chat_template = template
    copied = files_to_copy(base, template is not None)
    written = {
        CONFIG: (base / CONFIG).read_bytes(),
        **without_code(base),
        **generation_settings(base, tokenizer),
        **({} if template is None else template_files(base, template)),
    }
    return ExportPlan(
        keep=lambda name: name != head,
        files=written,
        copy=tuple(name for name in copied if name not in written),
        readme=partial(model_card, licence=licence_of(base), chats=tokenizer.chat_template is not None),
    )


def tied_head(base: Path) -> str | None:
    """Name of the head's weight where it is tied to the embedding: a copy that the base stores would go out untrained. None if not tied."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    config = read_config(base)
    if not config.get_text_config().tie_word_embeddings:
        return None
    with init_empty_weights():
        whole = AutoModelForCausalLM.from_config(config)
    return path_of(whole.get_output_embeddings(), whole) + ".weight"


def generation_settings(base: Path, tokenizer: Any) -> dict[str, bytes]:
    """generation_config.json, if what the model was taught to stop at is not in the base's."""
    path, config = base / GENERATION, cleaned(base / CONFIG)[0]
    now = cleaned(path)[0] if path.is_file() else {name: config[name] for name in ("bos_token_id", "eos_token_id") if name in config}
    known, wanted = now.get("eos_token_id"), stop_ids(tokenizer, now.get("eos_token_id"))
    return {} if wanted in (known, [known]) else {GENERATION: _json({**now, "eos_token_id": wanted})}


def without_code(base: Path) -> dict[str, bytes]:
    """config.json without what asks for code (`auto_map` of a repository with its own Python files), if it does: an export does not carry
    that code, and whoever loads it must not be asked to trust any."""
    document, dropped = cleaned(base / CONFIG)
    return {CONFIG: _json(document)} if dropped else {}


def template_files(base: Path, template: str) -> dict[str, bytes]:
    """A chat template in all places where it is looked for: its own file, and the older field, if the base has one there."""
    settings = cleaned(base / TOKENIZER)[0] if (base / TOKENIZER).is_file() else {}
    field = {TOKENIZER: _json({**settings, "chat_template": template})} if "chat_template" in settings else {}
    return {TEMPLATE: template.encode(), **field}


def files_to_copy(base: Path, other_template: bool) -> tuple[str, ...]:
    """What is copied of the base. With another template than the base's, none of the base's goes along."""
    patterns = [pattern for pattern in COPIED if not (other_template and "chat_template" in pattern)]
    return tuple(sorted({path.name for pattern in patterns for path in base.glob(pattern)}))


def licence_of(base: Path) -> str | None:
    """What the base's own card states as its licence, if it can be read."""
    try:
        _, header, _ = (base / "README.md").read_text(encoding="utf-8").split("---", 2)
        licence = load_yaml(header, "README.md")["license"]
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None
    return licence if isinstance(licence, str) else None


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
