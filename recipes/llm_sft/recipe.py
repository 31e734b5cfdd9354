"""llm_sft: supervised fine-tuning of any causal language model of transformers, on chats or on prompts with completions.

The tokenizer's own chat template decides which tokens are learned (`sft_tokenization`). The loss never computes full logits (`loss_head`).
Samples can be packed without attending to each other (`collation`); this is checked on the actual model before the first step
(`loss_assumption_checks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from overtone.finetune.config import Config
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import ExportPlan, Loaded, Recipe, Sample, Sketch
from overtone.recipes.language import causal_lm_loss, collation, loss_assumption_checks
from overtone.recipes.language.model_loading import load_for_training, sketch_model
from overtone.recipes.language.sft_tokenization import check_template, list_unused, tokenize_row
from overtone.recipes.language.tokenizer import check_vocabulary, load_tokenizer, read_template
from overtone.recipes.transformers_release import describe_old_release

from . import loss_mask_preview
from .exporting import export_plan
from .options import Options
from .state import SftState
from .verbs import INFERENCE


@dataclass(frozen=True)
class ChatProcessor:
    """Processor that `read` and `render_sample` need."""

    tokenizer: Any
    supervise: str
    allow_dropped: tuple[str, ...] = ()


def load(config: Config[Options]) -> Loaded:
    """The model on meta, its tokenizer, and the classes of its decoder layers."""
    options = config.options
    loaded = load_for_training(config)
    processor = load_processor(config, loaded)
    supervised = describe_supervision(processor.tokenizer, options.supervise)
    remarks = (supervised, *describe_allowed(options.allow_dropped), *loaded.remarks, *describe_old_release())
    return replace(loaded, processor=processor, state=make_state(options), remarks=remarks)


def load_processor(config: Config[Options], loaded: Loaded) -> ChatProcessor:
    """The base's tokenizer. Raises `UserError` if it has more tokens than the model has embeddings."""
    options = config.options
    tokenizer = load_tokenizer(loaded.base, options.chat_template)
    embeddings: Any = loaded.model.vocabulary
    check_vocabulary(tokenizer, embeddings, loaded.base)
    return ChatProcessor(tokenizer, options.supervise, options.allow_dropped)


def sketch(config: Config[Options]) -> Sketch:
    """For `overtone plan`."""
    sketched = sketch_model(config, load_processor)
    loaded = replace(sketched.loaded, remarks=(*sketched.loaded.remarks, *describe_old_release()))
    return replace(sketched, loaded=loaded)


def describe_supervision(tokenizer: Any, supervise: str) -> str:
    """For the log: how the supervised tokens are found. A template that cannot be used is no error here, as the rows may be plain text."""
    if supervise == "everything":
        return "supervised: every token, questions included (options.supervise: everything)"
    try:
        return check_template(tokenizer)
    except UserError as error:
        return f"only rows with prompt and completion as text can be trained, and no chats: {error}"


def describe_allowed(allow_dropped: Sequence[str]) -> list[str]:
    """For the log: what the chat template may drop."""
    return [f"not an error if the chat template drops it: {', '.join(allow_dropped)} (options.allow_dropped)"] if allow_dropped else []


def make_state(options: Options) -> SftState:
    """The recipe's part of a checkpoint's state: what an export needs, and what must not change within a run."""
    template = None if options.chat_template is None else read_template(options.chat_template)
    return SftState(supervise=options.supervise, chat_template=template)


def read(row: dict[str, Any], processor: Any, _: Path) -> Sample:
    """`ids` [S], and `supervised` [S], true for tokens that are learned."""
    ids, supervised = tokenize_row(row, processor.tokenizer, processor.supervise, processor.allow_dropped)
    return {"ids": torch.tensor(ids), "supervised": torch.tensor(supervised)}


def list_unused_parts(row: dict[str, Any], processor: Any) -> list[str]:
    """Return what of the row is not used, for counts."""
    return list_unused(row, processor.tokenizer, processor.allow_dropped)


def length(sample: Sample) -> int:
    """S, in tokens."""
    return len(sample["ids"])


def export(base: Path, state: SftState, _: dict[str, Tensor], form: str) -> ExportPlan:
    """The plan of a folder that AutoModelForCausalLM and AutoTokenizer load, with its conversion if `form` is another format."""
    return export_plan.plan_export(base, state, form)


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=read,
    list_unused=list_unused_parts,
    length=length,
    collate=collation.collate,
    loss=causal_lm_loss.compute_terms,
    base_distance=causal_lm_loss.COMPARISON,
    export=export,
    formats=export_plan.FORMATS,
    inference=INFERENCE,
    State=SftState,
    pack=collation.pack,
    pad=collation.pad,
    truncate=collation.truncate,
    verify=loss_assumption_checks.check_batching,
    report=causal_lm_loss.add_perplexity,
    unit="tokens",
    base_folders=("additional_chat_templates",),
    sketch=sketch,
    show=loss_mask_preview.render_sample,
)
