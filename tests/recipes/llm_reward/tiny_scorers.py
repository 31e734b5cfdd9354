"""Small runs of llm_reward in this process, on a tiny Qwen3, and the recipe's model and processor without a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from overtone.finetune.config import Config, resolve
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.training.run import train
from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.modeling.causal_model import CausalModel
from overtone.recipes.llm_reward.model.modeling import WEIGHT, SequenceScorer
from overtone.recipes.llm_reward.options import Options
from overtone.recipes.llm_reward.recipe import RECIPE
from overtone.recipes.llm_reward.sequence_rows import ScoringProcessor
from tests.finetune.tiny import let_go
from tests.recipes.llm_dpo.pairs_trained_plainly import ROWS as PAIRS
from tests.recipes.llm_sft import families, tiny_runs

LABELLED: list[dict[str, Any]] = [
    *({"text": f"{word} {count}", "label": label} for word, label in (("yes", "good"), ("no", "bad")) for count in range(4)),
    {"messages": [{"role": "user", "content": "Perhaps."}], "label": "open"},
]
CLASSES = (("options.objective", "classification"),)
LORA = (("model.lora", "{rank: 4, alpha: 8}"), ("train.lr", "2e-2"))


def processor_of(options: Options | None = None, labels: Sequence[str] = ()) -> ScoringProcessor:
    """The tokenizer has no padding of its own, so its end-of-text token takes that place, which also ends the turns of its chats."""
    tokenizer = families.tokenizer("chatml")
    return ScoringProcessor(tokenizer, options or Options(), tuple(labels), tokenizer.eos_token_id)


def build_scorer(base: Path, outputs: int = 1, centering: float = 0.0) -> SequenceScorer:
    """The recipe's model with the weights of a base and a random head."""
    varlen_attention.register()
    whole = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64, attn_implementation=varlen_attention.LOOP)
    model = SequenceScorer(CausalModel(whole), outputs, centering)
    torch.manual_seed(1)
    head = torch.randn(outputs, whole.config.hidden_size, dtype=torch.float64)
    model.load_state_dict({WEIGHT: head}, strict=False, assign=True)
    return model


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_config(folder: Path, *overrides: tuple[str, str], rows: Sequence[dict[str, Any]] | None = None) -> Config[Options]:
    """A run in `folder`/run; base and data are made if they are missing."""
    if not (folder / "base").is_dir():
        tiny_runs.write_base(folder / "base")
    classes = ("options.objective", "classification") in overrides
    data = str(write_rows(folder / "rows.jsonl", rows or (LABELLED if classes else PAIRS)))
    given = {
        **{"run.dir": str(folder / "run"), "model.source": str(folder / "base"), "data.train": data, "data.val": data, "train.steps": "3"},
        **{"train.precision": "fp32", "train.micro_tokens": "90", "train.global_batch_tokens": "400", "train.lr": "1e-2"},
        **{"log.trackers": "[]", "data.packing": "true", "train.warmup": "0", "eval.every": "3"},
        **dict(overrides),
    }
    return resolve("llm_reward", Options, [], [*given.items()])


def train_here(folder: Path, *overrides: tuple[str, str], rows: Sequence[dict[str, Any]] | None = None) -> Path:
    """Train in this process; returns the run's folder."""
    config = make_config(folder, *overrides, rows=rows)
    let_go(config.run.dir)
    train(join((), folder), config, RECIPE)
    leave()
    return config.run.dir
