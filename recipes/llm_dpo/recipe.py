"""llm_dpo: preference optimization of any causal language model of transformers, on pairs of answers to the same prompts.

Both answers of a pair are in one packed row, and neither attends to the other. The base, with which DPO and IPO compare, is the model
without its adapters, or a frozen, sharded copy of it (`Recipe.reference`). The output head never computes full logits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from overtone.finetune.config import Config
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import REFERENCE, Batch, ExportPlan, Loaded, Recipe, Reference, Row, Sample, Sketch, Term
from overtone.recipes.language import collation, loss_mask_preview
from overtone.recipes.language.chat_recipe import ChatProcessor, load_chat_model, read_given_template, sketch_chat_model
from overtone.recipes.language.exporting import model_card
from overtone.recipes.language.exporting.export_plan import FORMATS, plan_chat_export
from overtone.recipes.language.modeling import loss_assumption_checks
from overtone.recipes.language.preferences.preference_rows import list_unused_parts, tokenize_pair

from .options import REFERENCED, Objective, Options
from .preference_objectives import OBJECTIVES, Scores, Strengths, find_rewards
from .state import PreferenceState
from .verbs import INFERENCE

LOSS, REWARDS = "preference", ("chosen_reward", "rejected_reward")
METRICS = (
    *("accuracy", "margin", *REWARDS),
    *("chosen_log_probability", "rejected_log_probability", "chosen_tokens", "rejected_tokens"),
)
"""Means over pairs: share of pairs whose chosen answer has the higher reward, difference of the rewards, and so on."""


@dataclass(frozen=True)
class ObjectiveChoice:
    """The objective with its numbers, which `load` attaches to the model as `objective` and `compute_terms` reads."""

    name: Objective
    strengths: Strengths


def load(config: Config[Options]) -> Loaded[ChatProcessor[Options]]:
    """The model on meta, its tokenizer, and the classes of its decoder layers. Raises `UserError` without packing."""
    options = config.options
    check_packing(config)
    state = PreferenceState(
        chat_template=read_given_template(options),
        objective=options.objective,
        beta=options.strength,
        margin=options.margin,
        label_smoothing=options.label_smoothing,
        length_normalized=options.length_normalized,
    )
    loaded = load_chat_model(config, state)
    attach_objective(loaded.model, options)
    return replace(loaded, remarks=(describe_reference(config), *loaded.remarks))


def check_packing(config: Config[Options]) -> None:
    """Raises `UserError` unless samples are packed."""
    if not config.data.packing:
        raise UserError("llm_dpo computes both answers of a pair in one packed row; set data.packing: true")


def attach_objective(model: nn.Module, options: Options) -> None:
    """Give a model the `objective` that `compute_terms` reads."""
    strengths = Strengths(options.strength, options.margin, options.label_smoothing, options.length_normalized)
    model.__dict__["objective"] = ObjectiveChoice(options.objective, strengths)


def needs_reference(options: Options) -> bool:
    """Return whether the objective compares with the base."""
    return options.objective in REFERENCED


def describe_reference(config: Config[Options]) -> str:
    """For the log and `plan`: the reference of the objective."""
    if not needs_reference(config.options):
        return f"reference: none ({config.options.objective} compares the two answers by the model alone)"
    if config.model.lora is not None:
        return "reference: the model with its adapters switched off, one more forward pass for each batch"
    return "reference: a frozen copy of the base in the compute type, sharded as the model is, one more forward pass for each batch"


def sketch(config: Config[Options]) -> Sketch[ChatProcessor[Options]]:
    """The base in shape only, with batches of filler pairs, for `overtone plan`."""
    check_packing(config)
    sketched = sketch_chat_model(config)
    attach_objective(sketched.loaded.model, config.options)
    loaded = replace(sketched.loaded, remarks=(describe_reference(config), *sketched.loaded.remarks))
    return replace(sketched, loaded=loaded, batch=lambda count, positions: pack([make_filler(positions)] * count))


def make_filler(positions: int) -> Sample:
    """A pair of that many positions, where only the length matters."""
    return {**collation.make_filler(positions), "chosen": torch.tensor(positions // 2)}


def read(row: Row, processor: ChatProcessor[Options], _: Path) -> Sample:
    """Both sides end to end: `ids` [S], `supervised` [S], true for tokens of an answer, and `chosen` [], the length of the first side."""
    chosen, rejected = tokenize_pair(row, processor.tokenizer, processor.options.allow_dropped)
    ids, supervised = torch.tensor([*chosen[0], *rejected[0]]), torch.tensor([*chosen[1], *rejected[1]])
    return {"ids": ids, "supervised": supervised, "chosen": torch.tensor(len(chosen[0]))}


def split_sample(sample: Sample) -> tuple[Sample, Sample]:
    """The sides of a pair as samples of llm_sft."""
    at = int(sample["chosen"])
    first, second = ({name: sample[name][part] for name in ("ids", "supervised")} for part in (slice(at), slice(at, None)))
    return first, second


def pack(samples: list[Sample]) -> Batch:
    """A row of B pairs, each side a packed sample of its own. `answers` [2 B, A]: for each side, the places of its tokens among the
    targets, filled up with the number of targets."""
    sides = [side for sample in samples for side in split_sample(sample)]
    batch, places, start = collation.pack(sides), list[Tensor](), 0
    for side in sides:
        count = int((collation.shift_labels(side) != collation.IGNORE).sum())
        places.append(torch.arange(start, start + count))
        start += count
    tensors = {**batch.tensors, "answers": pad_sequence(places, batch_first=True, padding_value=start)}
    return Batch(tensors, dict.fromkeys((LOSS, *METRICS), len(samples)), batch.lengths)


def score_answers(model: nn.Module, batch: Batch) -> Tensor:
    """One forward → the log-probability of each answer [B, 2] in nats, summed over its tokens."""
    scores = model(batch.tensors, batch.lengths, result="scores")
    # Gathered, because `index_add` would add in another order each time on a GPU.
    return torch.cat([scores, scores.new_zeros(1)])[batch.tensors["answers"]].sum(1).view(-1, 2)


def compute_terms(model: nn.Module, batch: Batch) -> dict[str, Term]:
    """The loss of the pairs and their metrics, summed over pairs."""
    objective: Any = model.__dict__["objective"]
    answers = batch.tensors["answers"]
    tokens = (answers < len(batch.tensors["supervised"])).sum(1).view(-1, 2)
    scores = Scores(score_answers(model, batch), batch.tensors.get(REFERENCE), tokens)
    losses = OBJECTIVES[objective.name](scores, objective.strengths)
    rewards, found = find_rewards(scores, objective.strengths).detach(), scores.model.detach()
    margins = rewards[:, 0] - rewards[:, 1]
    measured = ((margins > 0), margins, *rewards.unbind(1), *found.unbind(1), *tokens.unbind(1))
    metrics = {name: Term(values.sum().to(margins.dtype), 0.0) for name, values in zip(METRICS, measured, strict=True)}
    return {LOSS: Term(losses.sum(), 1.0), **metrics}


def list_unused(row: Row, processor: ChatProcessor[Options]) -> list[str]:
    """Return what of the row is not used, for counts."""
    return list_unused_parts(row, processor.tokenizer, processor.options.allow_dropped)


def render_sample(sample: Sample, processor: ChatProcessor[Options]) -> str:
    """Both sides for a terminal, with the tokens of the answers standing out."""
    chosen, rejected = (loss_mask_preview.render_sample(side, processor) for side in split_sample(sample))
    return f"chosen:\n{chosen}\nrejected:\n{rejected}"


def export(base: Path, state: PreferenceState, _: dict[str, Tensor], form: str) -> ExportPlan:
    """The plan of a folder that AutoModelForCausalLM and AutoTokenizer load, with its conversion if `form` is another format."""
    objective = model_card.Objective(
        state.objective, {"Objective": f"{state.objective} on pairs of answers, β = {state.beta:g}"}, in_nats=False
    )
    return plan_chat_export(base, state.chat_template, form, objective)


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=read,
    list_unused=list_unused,
    collate=pack,
    loss=compute_terms,
    reference=Reference(predict=score_answers, needed=needs_reference),
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
