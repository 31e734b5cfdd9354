"""llm_grpo: training of any causal language model of transformers by rewards for its own answers.

In each step the model answers every prompt several times, in a running batch, with its current weights. The answers are scored, and trained
by how much better than the others of their group they are. No answer attends to another one, also if they are packed into one row. The
output head never computes full logits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from overtone.finetune.config import Config
from overtone.finetune.modeling.lora_adapters import is_adapter
from overtone.finetune.recipe import REFERENCE, Batch, ExportPlan, Loaded, Recipe, Reference, Rollouts, Sample, Sketch
from overtone.recipes.language import collation, loss_mask_preview
from overtone.recipes.language.chat_model_loading import ChatProcessor, load_chat_model, read_given_template, sketch_chat_model
from overtone.recipes.language.exporting import model_card
from overtone.recipes.language.exporting.export_plan import FORMATS, plan_chat_export
from overtone.recipes.language.modeling import loss_assumption_checks
from overtone.recipes.language.modeling.causal_model import CausalModel, score_tokens
from overtone.recipes.language.rollout_generation import check_base
from overtone.recipes.policy.policy_options import describe_reference, needs_reference
from overtone.recipes.policy.policy_terms import attach_bounds, check_mismatch, compute_terms
from overtone.recipes.policy.rollout_samples import MISMATCH
from overtone.recipes.speech.decoding.ragged_kv_cache import count_generation_bytes

from .answer_samples import collate, pack
from .group_answering import GroupAnswering
from .options import Options
from .prompt_rows import PromptProcessor, list_unused, measure_length, read
from .reward_digests import digest_rewards
from .rewards.reward_scoring import list_weights
from .state import PolicyState
from .verbs import INFERENCE


def load(config: Config[Options]) -> Loaded[PromptProcessor]:
    """The model on meta, its tokenizer, and the classes of its decoder layers."""
    options = config.options
    state = PolicyState(
        chat_template=read_given_template(options),
        objective=options.objective,
        group=options.group,
        max_new_tokens=options.max_new_tokens,
        clip_low=options.clip_low,
        clip_high=options.upper_clip,
        kl_weight=options.kl_weight,
        dynamic_sampling=options.dynamic_sampling,
        weights=list_weights(options.rewards),
        on_failure=options.rewards.on_failure,
        rewards=digest_rewards(options.rewards),
    )
    loaded = load_chat_model(config, state)
    check_base(loaded.base)
    attach_bounds(loaded.model, options)
    remarks = (*describe_memory(options, config.model.lora is not None), *describe_dropout(loaded.model), *loaded.remarks)
    return replace(loaded.with_processor(make_processor(loaded.processor, loaded.model)), remarks=remarks)


def make_processor(chats: ChatProcessor[Options], model: torch.nn.Module) -> PromptProcessor:
    """The processor of a run."""
    assert isinstance(model, CausalModel)
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return PromptProcessor(chats.tokenizer, chats.options, positions)


def describe_memory(options: Options, has_adapters: bool) -> list[str]:
    """For the log and `plan`: what takes memory beside the trained model."""
    copy = f"rollouts: a copy of the model in the compute type on each rank, and the keys and values of {options.rollout_batch} answers"
    return [copy, describe_reference(options, has_adapters)]


def describe_dropout(model: torch.nn.Module) -> list[str]:
    """For the log: the base's own dropout, which is off."""
    assert isinstance(model, CausalModel)
    settings = model.config.get_text_config().to_dict().items()
    found = [f"{key} {value:g}" for key, value in settings if "drop" in key and isinstance(value, float) and value > 0]
    return [f"dropout of the base is off, as answers are generated without it: {', '.join(found)}"] if found else []


def count_rollout_bytes(loaded: Loaded, options: Options, itemsize: int, micro_tokens: int) -> int:
    """Return the memory of the copy and its running batch. The longest answer with its prompt is that of the longest group that fits."""
    assert isinstance(loaded.model, CausalModel)
    parameters = sum(each.numel() for name, each in loaded.model.named_parameters() if not is_adapter(name))
    positions = max(micro_tokens // options.group, options.max_new_tokens + 1)
    return count_generation_bytes(parameters, loaded.model.config.get_text_config(), itemsize, options.rollout_batch, positions)


def sketch(config: Config[Options]) -> Sketch[PromptProcessor]:
    """The base in shape only, with batches of filler, for `overtone plan`."""
    sketched, options = sketch_chat_model(config), config.options
    check_base(sketched.loaded.base)
    model, lay = sketched.loaded.model, pack if config.data.packing else collate
    attach_bounds(model, options)

    def make_batch(count: int, positions: int) -> Batch:
        batch = lay([make_filler(positions // options.group)] * (count * options.group))
        added = {REFERENCE: torch.zeros(batch.targets[MISMATCH])} if needs_reference(options) else {}
        return replace(batch, tensors={**batch.tensors, **added})

    remarks = (*describe_memory(options, config.model.lora is not None), *sketched.loaded.remarks)
    return Sketch(replace(sketched.loaded, remarks=remarks), make_batch, lambda: make_processor(sketched.processor(), model))


def make_filler(positions: int) -> Sample:
    """An answer of that many positions, where only the length matters."""
    tokens = max(positions, 2) - 1  # the first one is never predicted
    numbers = {"advantage": torch.tensor(0.0), "weight": torch.tensor(1.0), "targets": torch.tensor(1)}
    return {**collation.make_filler(tokens + 1), "rollout": torch.zeros(tokens), **numbers}


def show(sample: Sample, processor: PromptProcessor) -> str:
    """The prompt for a terminal; the answers are not known before."""
    return loss_mask_preview.render_sample({**sample, "supervised": torch.zeros(len(sample["ids"]), dtype=torch.bool)}, processor)


def export(base: Path, state: PolicyState, _: dict[str, Tensor], form: str) -> ExportPlan:
    """The plan of a folder that AutoModelForCausalLM and AutoTokenizer load, with its conversion if `form` is another format."""
    weights = [f"{name} ({weight:g})" for name, weight in state.weights.items()]
    weights += ["functions of the user"] if "functions" in state.rewards else []
    rows = {"Objective": f"{state.objective}, groups of {state.group}", "Rewards": ", ".join(weights)}
    return plan_chat_export(base, state.chat_template, form, model_card.Objective("grpo", rows, in_nats=False))


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=read,
    list_unused=list_unused,
    collate=collate,
    loss=partial(compute_terms, score_tokens),
    length=measure_length,
    reference=Reference[Options](predict=score_tokens, needed=needs_reference),
    rollouts=Rollouts(
        open=GroupAnswering,
        check=check_mismatch,
        count_bytes=count_rollout_bytes,
        replacements=lambda options: options.dynamic_sampling,
    ),
    export=export,
    formats=FORMATS,
    inference=INFERENCE,
    State=PolicyState,
    pack=pack,
    pad=collation.pad,
    verify=loss_assumption_checks.check_batching,
    unit="tokens",
    base_folders=("additional_chat_templates",),
    sketch=sketch,
    show=show,
)
