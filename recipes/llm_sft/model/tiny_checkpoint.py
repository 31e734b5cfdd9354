"""Writes a small Qwen3 with random weights as a folder that AutoModelForCausalLM and AutoTokenizer load.

    python -m overtone.recipes.llm_sft.model.tiny_checkpoint FOLDER [--seed 0]

It is for tests and for the demo: it takes the same code path as a released model, in seconds and without a download.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from overtone.finetune.errors import catch_user_errors
from overtone.finetune.storage import files
from overtone.recipes.tiny_checkpoints import make_parser, make_random_weights, report_checkpoint, require_new_folder, write_checkpoint

TOKENIZER = Path(__file__).resolve().parents[1] / "tiny_tokenizer"
"""The output of toy_tokenizer.py."""
WIDTH, LAYERS, HEADS = 96, 3, 4
"""Reversing needs two layers: one finds which letter precedes each letter, the next looks that letter up. A third layer halves the number
of steps until this is learned."""
WEIGHT_STD = 0.05
"""Standard deviation of the initial weights. With the usual 0.02, so narrow a model starts with nearly equal logits."""


def build(folder: Path, seed: int = 0) -> Path:
    """Write model and tokenizer into a new folder. The same seed gives the same bytes.

    Raises `UserError` if the folder exists.
    """
    require_new_folder(folder)
    shipped = {path.name: path.read_bytes() for path in sorted(TOKENIZER.iterdir()) if path.is_file()}
    config = make_config(json.loads(shipped["tokenizer.json"]))
    ends = {name: config[name] for name in ("eos_token_id", "pad_token_id")}
    contents = {
        **shipped,
        "config.json": files.json_bytes(config),
        "generation_config.json": files.json_bytes(ends),
        "model.safetensors": make_weights(config, seed),
    }
    return write_checkpoint(folder, contents)


def make_config(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """`config.json` for the vocabulary of a `tokenizer.json`. As in Qwen3's base models, texts end with another token than turns."""
    end = next(added["id"] for added in tokenizer["added_tokens"] if added["content"] == "<|endoftext|>")
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"]),
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS // 2,
        "head_dim": WIDTH // HEADS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "initializer_range": WEIGHT_STD,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": end,
        "torch_dtype": "float32",
    }


def make_weights(config: dict[str, Any], seed: int) -> bytes:
    """`model.safetensors` for this `config.json`."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    return make_random_weights({name: parameter.shape for name, parameter in model.named_parameters()}, WEIGHT_STD, seed)


def main(argv: list[str]) -> int:
    """Body of the command line."""
    arguments = make_parser("overtone.recipes.llm_sft.model.tiny_checkpoint", "Write a small Qwen3 with random weights.").parse_args(argv)
    return report_checkpoint(build(arguments.folder, arguments.seed))


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
