"""llm_dpo: preference optimization of any causal language model of transformers, on pairs of answers to the same prompts, or, with KTO, on
answers with a label.

No answer attends to another one, also if they are packed into one row. The base, with which DPO, IPO and KTO compare, is the model without
its adapters, or a frozen, sharded copy of it (`Recipe.reference`). The output head never computes full logits.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from overtone.finetune.config import Config, Data
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import (
    DIVERGENCE,
    REFERENCE,
    Batch,
    Divergence,
    ExportPlan,
    Loaded,
    PredictionCache,
    Recipe,
    Reference,
    Row,
    Sample,
    Sketch,
)
from overtone.finetune.storage import input_files, strict_json
from overtone.recipes.language import collation, loss_mask_preview
from overtone.recipes.language.chat_model_loading import ChatProcessor, load_chat_model, read_given_template, sketch_chat_model
from overtone.recipes.language.exporting import model_card
from overtone.recipes.language.exporting.export_plan import FORMATS, plan_chat_export
from overtone.recipes.language.modeling import loss_assumption_checks
from overtone.recipes.language.modeling.causal_model import score_tokens
from overtone.recipes.language.preferences.preference_tokenization import (
    LABELLED,
    PAIR,
    list_unused_parts,
    tokenize_labelled,
    tokenize_pair,
)
from overtone.recipes.preferences.batch_targets import KL, count_predictions
from overtone.recipes.preferences.preference_terms import attach_objective, compute_terms, report_means
from overtone.recipes.preferences.reference_choice import describe_reference, is_reference_cached, needs_divergence, needs_reference

from .answer_batches import collate, make_labelled, make_pair, mismatch, pack, split_sample
from .options import Options
from .state import PreferenceState
from .verbs import INFERENCE


def load(config: Config[Options]) -> Loaded[ChatProcessor[Options]]:
    """The model on meta, its tokenizer, and the classes of its decoder layers."""
    options = config.options
    state = PreferenceState(
        chat_template=read_given_template(options),
        objective=options.objective,
        beta=options.strength,
        margin=options.margin,
        label_smoothing=options.label_smoothing,
        length_normalized=options.length_normalized,
        desirable_weight=options.desirable_weight,
        undesirable_weight=options.undesirable_weight,
    )
    loaded = load_chat_model(config, state)
    attach_objective(loaded.model, options, options.desirable_weight, options.undesirable_weight)
    return replace(loaded, remarks=(*list_remarks(options, config.model.lora is not None, config.data), *loaded.remarks))


def list_remarks(options: Options, has_adapters: bool, data: Data) -> list[str]:
    """For the log and `plan`: the reference of the objective, what padding takes, and a warning for answers with one label only."""
    found = describe_reference(options, has_adapters)
    if options.objective == "kto":
        return [found, *describe_single_label(data)]
    if data.packing:
        return [found]
    return [found, "without packing, both answers of a pair are padded to the longest: a micro-batch has up to twice train.micro_tokens"]


def describe_single_label(data: Data) -> list[str]:
    """Return a warning if all rows of the training files have the same label. Invalid rows are skipped, because the index reports them."""
    found = set[bool]()
    for path in data.training_files():
        for line in input_files.read_lines(path) if isinstance(path, Path) and path.is_file() else ():
            with suppress(UserError):
                label = strict_json.loads_object(line).get("label") if line.strip() else None
                found |= {label} if isinstance(label, bool) else set()
            if len(found) == 2:
                return []
    named = data.name_training_data()
    return [
        f"warning: all answers of {named} have the label {str(label).lower()}, so the model learns only what to "
        f"{'prefer' if label else 'avoid'}; add answers with the label {str(not label).lower()}"
        for label in found
    ]


def sketch(config: Config[Options]) -> Sketch[ChatProcessor[Options]]:
    """The base in shape only, with batches of filler, for `overtone plan`."""
    sketched, options = sketch_chat_model(config), config.options
    attach_objective(sketched.loaded.model, options, options.desirable_weight, options.undesirable_weight)
    lay = pack if config.data.packing else collate

    def make_batch(count: int, positions: int) -> Batch:
        batch = lay([make_filler(positions, options)] * count)
        added = {DIVERGENCE: torch.zeros(())} if needs_divergence(options) else {}
        if is_reference_cached(options):
            added[REFERENCE] = torch.zeros(batch.targets[KL])
        return replace(batch, tensors={**batch.tensors, **added})

    remarks = list_remarks(options, config.model.lora is not None, config.data)
    loaded = replace(sketched.loaded, remarks=(*remarks, *sketched.loaded.remarks))
    return replace(sketched, loaded=loaded, batch=make_batch)


def make_filler(positions: int, options: Options) -> Sample:
    """A sample of that many positions, where only the length matters."""
    own = {"label": torch.tensor(True)} if options.objective == "kto" else {"chosen": torch.tensor(positions // 2)}
    return {**collation.make_filler(positions), **own}


def read(row: Row, processor: ChatProcessor[Options], _: Path) -> Sample:
    """The sample of a row, as `answer_batches` describes it."""
    allowed = processor.options.allow_dropped
    if processor.options.objective == "kto":
        return make_labelled(*tokenize_labelled(row, processor.tokenizer, allowed))
    return make_pair(*tokenize_pair(row, processor.tokenizer, allowed))


def list_unused(row: Row, processor: ChatProcessor[Options]) -> list[str]:
    """Return what of the row is not used, for counts."""
    read_keys = LABELLED if processor.options.objective == "kto" else PAIR
    return list_unused_parts(row, processor.tokenizer, processor.options.allow_dropped, read_keys)


def render_sample(sample: Sample, processor: ChatProcessor[Options]) -> str:
    """The answers for a terminal, with their tokens standing out."""
    shown = [loss_mask_preview.render_sample(side, processor) for side in split_sample(sample)]
    names = ("chosen", "rejected") if len(shown) == 2 else ("desirable" if sample["label"] else "undesirable",)
    return "\n".join(f"{name}:\n{text}" for name, text in zip(names, shown, strict=True))


def export(base: Path, state: PreferenceState, _: dict[str, Tensor], form: str) -> ExportPlan:
    """The plan of a folder that AutoModelForCausalLM and AutoTokenizer load, with its conversion if `form` is another format."""
    answers = "answers with labels" if state.objective == "kto" else "pairs of answers"
    objective = model_card.Objective(state.objective, {"Objective": f"{state.objective} on {answers}, β = {state.beta:g}"}, in_nats=False)
    return plan_chat_export(base, state.chat_template, form, objective)


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=read,
    list_unused=list_unused,
    collate=collate,
    loss=partial(compute_terms, score_tokens),
    report=report_means,
    reference=Reference[Options](
        predict=score_tokens,
        needed=needs_reference,
        divergence=Divergence[Options](needed=needs_divergence, mismatch=mismatch),
        cache=PredictionCache[Options](needed=is_reference_cached, count=count_predictions),
    ),
    export=export,
    formats=FORMATS,
    inference=INFERENCE,
    State=PreferenceState,
    pack=pack,
    pad=collation.pad,
    verify=loss_assumption_checks.check_batching,
    unit="tokens",
    base_folders=("additional_chat_templates",),
    sketch=sketch,
    show=render_sample,
)
