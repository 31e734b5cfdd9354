"""A recipe for causal language models of transformers on bytes, for tests of parallelism with tied and untied embeddings.

A row is {"text": …, "given": n}: the first n bytes are given but not learned, so that rows of one length differ in their targets.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, GptOssConfig, LlamaConfig, PretrainedConfig, Qwen3Config

from overtone.finetune.config import Config, Section
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loading import resolve_source
from overtone.finetune.recipe import Batch, ExportPlan, Inference, Loaded, Recipe, Sample, Term
from overtone.finetune.storage import files
from overtone.recipes.language.modeling.tensor_parallel_plans import PLANS

IGNORE = -100
COMMON = {
    "vocab_size": 257,  # odd on purpose: shards of unequal size on 2 and 4 ranks
    "hidden_size": 40,
    "intermediate_size": 90,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
}
TINY: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**COMMON, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**COMMON, head_dim=12, tie_word_embeddings=True),
    # Sizes divisible by 64, for four-bit weights.
    "wide": Qwen3Config(**{**COMMON, "hidden_size": 64, "intermediate_size": 128}, head_dim=16, tie_word_embeddings=True),
    # Tensors of whole and of partial blocks of 256, for 8-bit moments.
    "broad": Qwen3Config(**{**COMMON, "hidden_size": 256, "intermediate_size": 320}, head_dim=16, tie_word_embeddings=True),
    # Experts that are one parameter in each version of transformers; shards of unequal size on 2 ranks. Grouped products need whole
    # multiples of 16 bytes.
    "experts": GptOssConfig(
        **{**COMMON, "intermediate_size": 96}, head_dim=12, num_local_experts=3, num_experts_per_tok=2, rope_scaling=None, rope_theta=1e4
    ),
}


class Options(Section):
    """None."""


class ByteCausalModel(nn.Module):
    """Decoder and head with one forward, and with the parameter names of the base's files."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.model, self.lm_head = whole.model, whole.lm_head

    def forward(self, tensors: dict[str, Tensor]) -> Tensor:
        """`ids` and `labels` [B, S] → fp32 sum over the targets of the negative log-likelihood in nats."""
        hidden = self.model(input_ids=tensors["ids"], use_cache=False).last_hidden_state
        following = tensors["labels"][:, 1:]
        counted = following != IGNORE
        return functional.cross_entropy(self.lm_head(hidden[:, :-1][counted]).float(), following[counted], reduction="sum")


def write_base(folder: Path, kind: Literal["llama", "qwen3", "wide", "broad", "experts"], seed: int = 0) -> Path:
    """Random weights that bf16 represents exactly, in the layout of a released model; a tied head is not stored."""
    from safetensors.torch import save

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(TINY[kind])
    tensors = {name: parameter.detach().bfloat16().float() for name, parameter in model.named_parameters()}
    for name, tensor in tensors.items():
        if "norm" in name:  # with ones, a norm applied to the wrong channel would not be detected
            tensor.uniform_(0.5, 1.5).copy_(tensor.bfloat16())
    files.write_json(folder / "config.json", {**model.config.to_dict(), "architectures": [type(model).__name__]})
    files.write_bytes(folder / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    return folder


def write_texts(path: Path) -> Path:
    """24 rows of 6 to 60 characters, the same each time."""
    chance = random.Random(0)
    rows = [{"text": "".join(chance.choices("abcdefgh ", k=chance.randint(6, 60)))} for _ in range(24)]
    files.write_jsonl(path, rows)
    return path


def on_meta(folder: Path) -> ByteCausalModel:
    """The model on meta. Moving to meta unties weights, so they are tied again."""
    from accelerate import init_empty_weights

    config = AutoConfig.from_pretrained(folder)
    with init_empty_weights(include_buffers=False):
        attention = "eager" if config.model_type == "gpt_oss" else "sdpa"  # transformers has no sdpa for its attention sinks
        model = ByteCausalModel(AutoModelForCausalLM.from_config(config, attn_implementation=attention))
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model


def load(config: Config[Options]) -> Loaded:
    base = resolve_source(config.model.source, config.model.revision)
    model = on_meta(base)
    return Loaded(model, None, (type(model.model.layers[0]),), base, tensor_plans=PLANS)


def read(row: dict[str, Any], processor: Any, folder: Path) -> Sample:
    ids = torch.tensor(list(row["text"].encode()))
    given = int(row.get("given", 0))
    if len(ids) < given + 2:
        raise UserError(f"text of {len(ids)} bytes, {given} of them given, leaves nothing to learn")
    return {"ids": ids, "labels": torch.where(torch.arange(len(ids)) < given, IGNORE, ids)}


def collate(samples: list[Sample]) -> Batch:
    longest = max(len(sample["ids"]) for sample in samples)

    def padded(name: str, value: int) -> Tensor:
        return torch.stack([functional.pad(sample[name], (0, longest - len(sample[name])), value=value) for sample in samples])

    labels = padded("labels", IGNORE)
    return Batch({"ids": padded("ids", 0), "labels": labels}, {"next": int((labels[:, 1:] != IGNORE).sum())})


def loss(model: nn.Module, batch: Batch) -> dict[str, Term]:
    return {"next": Term(model(batch.tensors), 1.0)}


def export(base: Path, state: dict[str, Any], buffers: dict[str, Tensor], form: str) -> ExportPlan:
    tied = json.loads((base / "config.json").read_text())["tie_word_embeddings"]
    return ExportPlan(keep=lambda name: not (tied and name == "lm_head.weight"), copy=("config.json",))


def generate(folder: Path, argv: list[str]) -> int:
    raise UserError("this recipe is for tests of training; it has no generation")


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=read,
    length=lambda sample: len(sample["ids"]),
    collate=collate,
    loss=loss,
    export=export,
    formats=("plain",),
    inference=Inference(generate=generate),
    lora_targets=r"model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)",
)
