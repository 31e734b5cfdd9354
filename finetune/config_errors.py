"""Config validation errors in plain words: file and line, the key, and the nearest valid key."""

from __future__ import annotations

import difflib
from typing import get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from overtone.finetune.config_key_descriptions import fields, section_of


def explain(problem: ErrorDetails, model: type[BaseModel], origins: dict[str, str]) -> str:
    """Return a validation error as one sentence: file and line, the key, and the expected value or the nearest valid key."""
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    inner = (origins[known] for known in origins if known.startswith(f"{key}."))
    prefixes = (".".join(location[:end]) for end in range(len(location), 0, -1))
    place = next((origins[known] for known in prefixes if known in origins), next(inner, "the defaults"))
    if problem["type"] == "extra_forbidden":
        near = _nearest(model, location)
        hint = f"; did you mean {near}?" if near else f"; sections are {', '.join(model.model_fields)}"
        return f"{place}: unknown key {key}{hint}"
    if key in MAIN_KEYS and isinstance(problem["input"], str):
        return f"{place}: {key} is a section; did you mean {MAIN_KEYS[key]}: {problem['input']}?"
    if problem["type"] == "missing":
        named = key if location[0] in model.model_fields else f"options.{key}"  # a section of defaults is validated by itself
        return f"{named} has no default; give it with --{named} VALUE"
    return f"{place}: {key} = {problem['input']!r}: {problem['msg']}"


MAIN_KEYS = {"model": "model.source", "data": "data.train", "run": "run.dir", "eval": "eval.every", "checkpoint": "checkpoint.every"}
"""Section → the key that is meant by a plain value."""


SYNONYMS = {
    **dict.fromkeys(("learning_rate", "max_learning_rate"), "train.lr"),
    **dict.fromkeys(("num_train_epochs", "num_epochs"), "train.epochs"),
    **dict.fromkeys(("max_steps", "num_steps", "total_steps"), "train.steps"),
    **dict.fromkeys(("batch_size", "global_batch_size", "train_batch_size"), "train.global_batch_tokens"),
    **dict.fromkeys(("per_device_train_batch_size", "micro_batch_size"), "train.micro_tokens"),
    "gradient_accumulation_steps": "train.global_batch_tokens",
    **dict.fromkeys(("gradient_checkpointing", "use_gradient_checkpointing"), "train.activation_checkpointing"),
    **dict.fromkeys(("warmup_ratio", "warmup_steps"), "train.warmup"),
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler", "scheduler"), "train.schedule"),
    **dict.fromkeys(("max_grad_norm", "gradient_clipping", "grad_clip"), "train.clip"),
    "adam_beta1": "train.beta1",
    "adam_beta2": "train.beta2",
    **dict.fromkeys(("bf16", "fp16", "mixed_precision", "torch_dtype", "dtype"), "train.precision"),
    **dict.fromkeys(("optim", "optimizer_type"), "train.optimizer"),
    "torch_compile": "train.compile",
    **dict.fromkeys(("output_dir", "logging_dir"), "run.dir"),
    **dict.fromkeys(("model_name_or_path", "model_id", "base_model", "init_model_path"), "model.source"),
    **dict.fromkeys(("r", "lora_r", "lora_rank", "peft_r"), "model.lora.rank"),
    "lora_alpha": "model.lora.alpha",
    "lora_dropout": "model.lora.dropout",
    **dict.fromkeys(("lora_target_modules", "target_modules"), "model.lora.targets"),
    "use_dora": "model.lora.dora",
    "use_rslora": "model.lora.rslora",
    **dict.fromkeys(("lora", "use_peft", "use_lora"), "model.lora"),
    "load_in_4bit": "model.quantization",
    **dict.fromkeys(("dataset_name", "train_file", "train_jsonl", "dataset_path"), "data.train"),
    **dict.fromkeys(("eval_file", "validation_file", "eval_jsonl"), "data.val"),
    **dict.fromkeys(("max_length", "max_seq_length", "max_seq_len"), "data.sequence_length"),
    **dict.fromkeys(("save_steps", "save_freq", "checkpoint_every"), "checkpoint.every"),
    "save_total_limit": "checkpoint.keep",
    "metric_for_best_model": "checkpoint.best_by",
    "early_stopping_patience": "train.patience",
    **dict.fromkeys(("dataset_mixture", "interleave"), "data.mix"),
    "eval_steps": "eval.every",
    "logging_steps": "log.every",
    **dict.fromkeys(("report_to", "tracker"), "log.trackers"),
    "speaker_name": "options.speaker",
}
"""Names of other trainers → the key here that sets the same, or the nearest to it."""


def _nearest(model: type[BaseModel], location: list[str]) -> str | None:
    """The key for a name of another trainer, otherwise a close match in the same section, otherwise in any section, otherwise of a name of
    another trainer, otherwise a distant match in the same section."""
    siblings = {name: ".".join([*location[:-1], name]) for name in _known_keys(model, location[:-1])}
    anywhere = {key.rpartition(".")[2]: key for key, *_ in reversed(list(fields(model)))}
    known = {key for key, *_ in fields(model)}
    synonyms = {name: key for name, key in SYNONYMS.items() if key in known or any(each.startswith(f"{key}.") for each in known)}
    if location[-1] in synonyms:
        return synonyms[location[-1]]
    for keys, cutoff in ((siblings, 0.8), (anywhere, 0.8), (synonyms, 0.9), (siblings, 0.5)):
        if near := difflib.get_close_matches(location[-1], keys, n=1, cutoff=cutoff):
            return keys[near[0]]
    return None


def _known_keys(model: type[BaseModel], path: list[str]) -> list[str]:
    for name in path:
        if name.isdecimal():  # of a list of sections, whose section is already known
            continue
        kind = model.model_fields[name].annotation if name in model.model_fields else None
        # Each element of a list of sections has the keys of the section.
        section = section_of(get_args(kind)[0] if get_origin(kind) is tuple else kind)
        if section is None:
            return []
        model = section
    return list(model.model_fields)
