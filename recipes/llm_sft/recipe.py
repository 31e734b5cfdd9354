"""llm_sft: supervised fine-tuning of any causal language model of transformers, on chats or on prompts with completions.

The tokenizer's own chat template decides which tokens are learned (`sft_tokenization`). The loss never computes full logits (`loss_head`).
Samples can be packed without attending to each other (`collation`); this is checked on the actual model before the first step
(`loss_assumption_checks`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from overtone.finetune.config import Config
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import ExportPlan, Loaded, Recipe, Row, Sample
from overtone.recipes.language import causal_lm_loss, collation, loss_mask_preview
from overtone.recipes.language.chat_model_loading import ChatProcessor, load_chat_model, read_given_template, sketch_chat_model
from overtone.recipes.language.exporting.export_plan import FORMATS, plan_chat_export
from overtone.recipes.language.exporting.model_card import Objective
from overtone.recipes.language.modeling import loss_assumption_checks
from overtone.recipes.language.tokenization.sft_tokenization import check_template, list_unused, tokenize_row

from .options import Options
from .state import SftState
from .verbs import INFERENCE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SUPERVISED = {"assistant": "every turn of the assistant", "last": "the assistant's last turn", "everything": "every token"}


def load(config: Config[Options]) -> Loaded[ChatProcessor[Options]]:
    """The model on meta, its tokenizer, and the classes of its decoder layers."""
    options = config.options
    loaded = load_chat_model(config, SftState(supervise=options.supervise, chat_template=read_given_template(options)))
    return replace(loaded, remarks=(describe_supervision(loaded.processor.tokenizer, options.supervise), *loaded.remarks))


def describe_supervision(tokenizer: PreTrainedTokenizerBase, supervise: str) -> str:
    """For the log: how the supervised tokens are found. A template that cannot be used is no error here, as the rows may be plain text."""
    if supervise == "everything":
        return "supervised: every token, questions included (options.supervise: everything)"
    try:
        return f"{check_template(tokenizer)}; of a raw text, all of it"
    except UserError as error:
        return f"only raw texts, and rows with prompt and completion as text, can be trained, and no chats: {error}"


def read(row: Row, processor: ChatProcessor[Options], _: Path) -> Sample:
    """`ids` [S], and `supervised` [S], true for tokens that are learned."""
    ids, supervised = tokenize_row(row, processor.tokenizer, processor.options.supervise, processor.options.allow_dropped)
    return {"ids": torch.tensor(ids), "supervised": torch.tensor(supervised)}


def list_unused_parts(row: Row, processor: ChatProcessor[Options]) -> list[str]:
    """Return what of the row is not used, for counts."""
    return list_unused(row, processor.tokenizer, processor.options.allow_dropped)


def export(base: Path, state: SftState, _: dict[str, Tensor], form: str) -> ExportPlan:
    """The plan of a folder that AutoModelForCausalLM and AutoTokenizer load, with its conversion if `form` is another format."""
    return plan_chat_export(base, state.chat_template, form, Objective("sft", {"Supervised": SUPERVISED[state.supervise]}))


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=read,
    list_unused=list_unused_parts,
    collate=collation.collate,
    loss=causal_lm_loss.compute_terms,
    base_distance=causal_lm_loss.COMPARISON,
    export=export,
    formats=FORMATS,
    inference=INFERENCE,
    State=SftState,
    pack=collation.pack,
    pad=collation.pad,
    truncate=collation.truncate,
    verify=loss_assumption_checks.check_batching,
    report=causal_lm_loss.add_perplexity,
    unit="tokens",
    base_folders=("additional_chat_templates",),
    sketch=sketch_chat_model,
    show=loss_mask_preview.render_sample,
)
