"""A tiny Qwen3 with its own tokenizer, and runs in this process that memorize two chats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Qwen3Config

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.config import resolve
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.monitoring import run_logger, stop_requests
from overtone.finetune.training import setup
from overtone.finetune.training.loop import fit
from overtone.recipes.llm_sft.recipe import RECIPE
from tests.recipes.llm_sft import families

CHATS = (("Good day.", "And to you."), ("Who are you?", "I am a machine."))
POSITIONS = 96
FULL = ("train.lr", "1e-2")
ADAPTED = (("train.lr", "5e-2"), ("model.lora", "{rank: 8, alpha: 16}"))


def write_base(folder: Path, tokenizer: Any = None, tied: bool = True) -> Path:
    """Random fp32 weights and a tokenizer in the layout of a released model. The head is stored also if it is tied, as in some releases."""
    tokenizer = tokenizer or families.tokenizer("chatml")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=POSITIONS,
        initializer_range=0.1,
        tie_word_embeddings=tied,
        eos_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config)
    tokenizer.save_pretrained(folder)
    tensors = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    save_file({**tensors, "lm_head.weight": model.lm_head.weight.detach().clone()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**config.to_dict(), "architectures": ["Qwen3ForCausalLM"]}))
    return folder


def rows() -> list[dict[str, Any]]:
    return [{"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]} for prompt, answer in CHATS]


def trained(folder: Path, *overrides: tuple[str, str], data: list[dict[str, Any]] | None = None) -> Path:
    """Train folder/base (made if it is missing) and commit the run to folder/run, which is returned."""
    if not (folder / "base").is_dir():
        write_base(folder / "base")
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data or rows()))
    given = {
        "run.dir": folder / "run",
        "model.source": folder / "base",
        "data.train": folder / "chats.jsonl",
        "train.steps": 60,
        "train.precision": "fp32",
        "train.global_batch_tokens": 60,
        "train.micro_tokens": 90,
        "log.trackers": "[]",
        **dict(overrides),
    }
    config = resolve("llm_sft", RECIPE.Options, [], [(key, str(value)) for key, value in given.items()])
    world = join((), folder)
    try:
        training, progress = setup.build(config, RECIPE, world)
        saver = checkpoint.Saver(world, config.run.dir, config.checkpoint.keep, config.checkpoint.asynchronous)
        log = run_logger.Events(config.run.dir, world.accelerator, training.total, 0, {})
        with stop_requests.StopRequests() as requests:
            fit(training, progress, log, saver, requests)
        saver.close()
        log.close()
    finally:
        leave()
    return config.run.dir
