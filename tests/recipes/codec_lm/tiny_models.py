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
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForCausalLM

from finetune.checkpointing import checkpoint
from finetune.config import Config, resolve
from finetune.distributed.process_group import join, leave
from finetune.monitoring import event_log, stop_requests
from finetune.training import setup
from finetune.training.loop import fit
from recipes.codec_lm.families import ORPHEUS, Family
from recipes.codec_lm.recipe import RECIPE

SIZE = 16
"""Codes of a codebook."""
FAMILY: Family = ORPHEUS.model_copy(update={"codebook_size": SIZE, "samples_per_frame": 64})
SNAC_CONFIG = {
    "sampling_rate": 24000,
    "encoder_dim": 4,
    "encoder_rates": [2, 2, 2, 2],
    "decoder_dim": 32,
    "decoder_rates": [2, 2, 2, 2],
    "attn_window_size": None,
    "codebook_size": SIZE,
    "codebook_dim": 4,
    "vq_strides": [4, 2, 1],
    "noise": True,
    "depthwise": True,
}
HAS_SNAC = importlib.util.find_spec("snac") is not None
POSITIONS = 256
TEXTS = ("She counted the boats.", "It is never late, is it?")
FULL = ("train.lr", "1e-2")
ADAPTED = (("train.lr", "2e-2"), ("train.steps", "80"), ("model.lora", "{rank: 16, alpha: 32, targets: all-linear}"))


BEGIN, END_OF_TEXT = "<|begin_of_text|>", "<|eot_id|>"
TINY_SPECIAL = (BEGIN, END_OF_TEXT, *(f"<custom_token_{number}>" for number in range(10 + len(FAMILY.slots) * SIZE)))
RELEASED_SPECIAL = (
    *(BEGIN, *(f"<|reserved_{number}|>" for number in range(8)), END_OF_TEXT, *(f"<|reserved_{number}|>" for number in range(8, 254))),
    *(f"<custom_token_{number}>" for number in range(7 * 4096 + 11)),
    "<|audio|>",
)
"""As in the released tokenizer: Llama 3's 256 special tokens from 128,000 on, of which two matter here, then those of Orpheus."""


def make_tokenizer(special: tuple[str, ...] = TINY_SPECIAL, words: int = 256) -> Tokenizer:
    """Llama 3's in form: so many words, most of them fillers beside the bytes, then the special tokens; it puts a beginning-of-text token
    before each text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    filler = [f"<unused {number}>" for number in range(words - len(alphabet))]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate([*alphabet, *filler])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=None, special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    declared = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END_OF_TEXT,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps(declared))


def make_config(vocabulary: int, **changes: Any) -> dict[str, Any]:
    """Content of a Llama's config.json with the rotary positions of Llama 3.2."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 64,
        },
        "max_position_embeddings": POSITIONS,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "initializer_range": 0.1,
        "bos_token_id": 0,
        "eos_token_id": 1,
        **changes,
    }


def write_config(folder: Path, vocabulary: int, **changes: Any) -> dict[str, Any]:
    config = make_config(vocabulary, **changes)
    (folder / "config.json").write_text(json.dumps(config))
    return config


def write_base(folder: Path) -> Path:
    """Random weights. The head is stored although it is tied, as in the released model."""
    tokenizer = make_tokenizer()
    write_tokenizer(folder, tokenizer)
    config = write_config(folder, tokenizer.get_vocab_size())
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    tensors = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    save_file({**tensors, "lm_head.weight": model.lm_head.weight.detach().clone()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "voices.json").write_text(json.dumps({"family": FAMILY.model_dump()}))
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
        log = event_log.Events(config.run.dir, world.accelerator, training.total, 0, {})
        with stop_requests.StopRequests() as requests:
            fit(training, progress, log, saver, requests)
        saver.close()
        log.close()
    finally:
        leave()
    return config.run.dir
