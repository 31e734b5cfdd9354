"""The files of the export of a chat model: weights under their released names, and everything else that AutoModelForCausalLM and
AutoTokenizer read; for llama.cpp and Ollama, the conversion of this folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overtone.finetune.exporting.model_card_metadata import README, read_base_metadata
from overtone.finetune.recipe import ExportPlan
from overtone.finetune.storage import input_files
from overtone.finetune.storage.model_security import CONFIG, cleaned
from overtone.recipes.language.causal_lm_export_files import (
    GENERATION,
    TOKENIZER,
    complete_tokenizer,
    config_without_code,
    encode_json,
    find_stored_weights,
    list_copied_files,
)
from overtone.recipes.language.gguf import export_conversion
from overtone.recipes.language.tokenization.stop_tokens import find_stop_ids
from overtone.recipes.language.tokenization.tokenizer import load_tokenizer

from .model_card import Objective, render_card

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE = "chat_template.jinja"
TRANSFORMERS = "transformers"
FORMATS = (TRANSFORMERS, *export_conversion.FORMATS)
"""The formats of an export, the default first."""


def plan_chat_export(base: Path, template: str | None, form: str, objective: Objective) -> ExportPlan:
    """Return the files of an export. `template`: the chat template of the training, if it is not the base's own. `form`: one of `FORMATS`.

    Raises `UserError` for a base that cannot be trained, and for one that `form` cannot express.
    """
    tokenizer, weights = load_tokenizer(base, None), find_stored_weights(base)
    if template is not None:
        tokenizer.chat_template = template
    copied = list_copied_files(base, ("chat_template",) if template is not None else ())
    stored, generation = read_generation(base), find_generation(base, tokenizer)
    written = {
        CONFIG: input_files.read_bytes(base / CONFIG),
        **config_without_code(base),
        **({} if generation == stored else {GENERATION: encode_json(generation)}),
        **({} if template is None else template_files(base, template)),
    }
    written = complete_tokenizer(base, written)
    copied = tuple(name for name in copied if name not in written)
    conversion = None if form == TRANSFORMERS else export_conversion.make_conversion(form, base, tokenizer, generation)
    beside = (*(name for name in copied if name != GENERATION), *(name for name in (TEMPLATE, TOKENIZER) if name in written))
    return ExportPlan(
        layouts=weights.layouts,
        keep=lambda name: name not in weights.dropped,
        files=written,
        copy=copied,
        adapter_config={"task_type": "CAUSAL_LM"},
        adapter_files=(README,) if conversion else beside,
        readme=partial(
            render_card, inherited=read_base_metadata(base), chats=tokenizer.chat_template is not None, form=form, objective=objective
        ),
        conversion=conversion,
    )


def read_generation(base: Path) -> dict[str, Any]:
    """The content of the base's generation_config.json, or what config.json says in its place."""
    path, config = base / GENERATION, cleaned(base / CONFIG)[0]
    return cleaned(path)[0] if path.is_file() else {name: config[name] for name in ("bos_token_id", "eos_token_id") if name in config}


def find_generation(base: Path, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """As `read_generation`, with the tokens at which the model learned to stop."""
    settings = read_generation(base)
    known = settings.get("eos_token_id")
    needed = find_stop_ids(tokenizer, known)
    return settings if needed in (known, [known]) else {**settings, "eos_token_id": needed}


def template_files(base: Path, template: str) -> dict[str, bytes]:
    """Return a chat template in all files that have one: its own file, and the older field of tokenizer_config.json if the base uses it."""
    settings = cleaned(base / TOKENIZER)[0] if (base / TOKENIZER).is_file() else {}
    field = {TOKENIZER: encode_json({**settings, "chat_template": template})} if "chat_template" in settings else {}
    return {TEMPLATE: template.encode(), **field}
