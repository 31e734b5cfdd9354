"""A tiny Llama that speaks in the tokens of a tiny SNAC, and runs in this process that memorize a few clips.

The tokenizer has Orpheus' tokens by name, with 16 codes a codebook instead of 4096: with the released vocabulary of 156,940, nearly all
time would go into the output head. `test_families.py` and `test_released_models.py` have the released ids and sizes.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.config import Config, resolve
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.monitoring import run_logger, stop_requests
from overtone.finetune.training import setup
from overtone.finetune.training.loop import fit
from overtone.recipes.codec_lm.families import Family
from overtone.recipes.codec_lm.model import tiny_checkpoint
from overtone.recipes.codec_lm.model.tiny_checkpoint import BEGIN, END_OF_TEXT, make_tokenizer
from overtone.recipes.codec_lm.recipe import RECIPE

SIZE = tiny_checkpoint.CODES
FAMILY: Family = tiny_checkpoint.FAMILY.model_copy(update={"samples_per_frame": 64})
SNAC_CONFIG = {**tiny_checkpoint.SNAC_CONFIG, "encoder_rates": [2, 2, 2, 2], "decoder_dim": 32, "decoder_rates": [2, 2, 2, 2]}
"""With short frames, which are soon decoded."""
HAS_SNAC = importlib.util.find_spec("snac") is not None
POSITIONS = 256
TEXTS = ("She counted the boats.", "It is never late, is it?")
FULL = ("train.lr", "1e-2")
ADAPTED = (("train.lr", "2e-2"), ("train.steps", "80"), ("model.lora", "{rank: 16, alpha: 32, targets: all-linear}"))
TINY_SPECIAL = tiny_checkpoint.SPECIAL
RELEASED_SPECIAL = (
    *(BEGIN, *(f"<|reserved_{number}|>" for number in range(8)), END_OF_TEXT, *(f"<|reserved_{number}|>" for number in range(8, 254))),
    *(f"<custom_token_{number}>" for number in range(7 * 4096 + 11)),
    "<|audio|>",
)
"""As in the released tokenizer: Llama 3's 256 special tokens from 128,000 on, of which two matter here, then those of Orpheus."""
QWEN_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|qwen_{number}|>" for number in range(23))),
    *(f"<custom_token_{number}>" for number in range(7 * 4096 + 11)),
)
"""As in VyvoTTS' tokenizer: Qwen3's 26 added tokens from 151,643 on, of which one matters here, then the custom ones."""


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = tiny_checkpoint.make_tokenizer_files(tokenizer)
    if tokenizer.token_to_id(BEGIN) is None:  # what is declared is added if it is missing
        files["tokenizer_config.json"] = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}).encode()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def write_config(folder: Path, vocabulary: int, **changes: Any) -> dict[str, Any]:
    config = {**tiny_checkpoint.make_config(vocabulary), "max_position_embeddings": POSITIONS, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return config


def write_base(folder: Path) -> Path:
    """Random weights."""
    tokenizer = make_tokenizer(TINY_SPECIAL)
    write_tokenizer(folder, tokenizer)
    return write_weights(folder, write_config(folder, tokenizer.get_vocab_size()), FAMILY)


def write_weights(folder: Path, config: dict[str, Any], family: Family) -> Path:
    """The head is stored although it is tied, as in the released model."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    tensors = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    save_file({**tensors, "lm_head.weight": model.lm_head.weight.detach().clone()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "voices.json").write_text(json.dumps({"family": family.model_dump()}))
    return folder


def write_codec(folder: Path, seed: int = 0, config: dict[str, Any] = SNAC_CONFIG) -> Path:
    """A SNAC with random weights as it is published, config.json and a pickle; without the package, one that can only be copied."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(seed)
    weights = {"codebook": torch.randn(SIZE, 4)}
    if HAS_SNAC:
        from snac import SNAC

        weights = SNAC(**config).state_dict()
    torch.save(weights, folder / "pytorch_model.bin")
    return folder


def make_rows(speakers: tuple[str, ...] = ("Ann", "Bob"), frames: tuple[int, ...] = (6, 9)) -> list[dict[str, Any]]:
    """Each speaker says two texts, each time with other random codes and another length, so that both matter. In each clip a sound is held:
    two frames have the same codes, and the next one has the same first code."""
    chance, rows = np.random.RandomState(0), []
    for number, speaker in enumerate(speakers):
        for text, count in zip(TEXTS, frames, strict=True):
            codes = chance.randint(0, SIZE, (count + number, 7))
            codes[2], codes[3, 0] = codes[1], codes[1, 0]
            rows.append({"text": text, "speaker": speaker, "language": "english", "audio_codes": codes.tolist()})
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def configure(folder: Path, *overrides: tuple[str, str], rows: list[dict[str, Any]] | None = None) -> Config[Any]:
    """The config of a run of folder/base on folder/train.jsonl with folder/codec, which are made if they are missing."""
    if not (folder / "base").is_dir():
        write_base(folder / "base")
    if not (folder / "codec").is_dir():
        write_codec(folder / "codec")
    write_rows(folder / "train.jsonl", make_rows() if rows is None else rows)
    given = {
        "run.dir": folder / "run",
        "model.source": folder / "base",
        "options.codec": folder / "codec",
        "data.train": folder / "train.jsonl",
        "data.packing": "true",
        "train.steps": 60,
        "train.weight_decay": 0,
        "train.final_lr": 0.02,
        "train.precision": "fp32",
        "train.global_batch_tokens": 1000,
        "train.micro_tokens": 250,
        "log.trackers": "[]",
        **dict(overrides),
    }
    return resolve("codec_lm", RECIPE.Options, [], [(key, str(value)) for key, value in given.items()])


def trained(folder: Path, *overrides: tuple[str, str], rows: list[dict[str, Any]] | None = None) -> Path:
    """Train and commit the run to folder/run, which is returned."""
    config = configure(folder, *overrides, rows=rows)
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
