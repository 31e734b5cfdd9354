"""A small model in Orpheus' layout with random weights, and a small SNAC in it: a folder as this recipe exports.

    python -m overtone.recipes.codec_lm.model.tiny_checkpoint FOLDER [--seed 0]

For tests and for trying the commands: it runs the same code as a released model, in seconds and without a download. It speaks noise until
it is trained. Its codec has the frames of the released one, with codebooks of 16 codes instead of 4096.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForCausalLM

from overtone.data_prep.audio_codecs.snac_codec import CODEC_FOLDER, WEIGHTS, import_snac
from overtone.finetune.errors import catch_user_errors
from overtone.finetune.storage import files
from overtone.finetune.storage.model_security import CONFIG
from overtone.recipes.speech.voices_json_schema import VOICES
from overtone.recipes.tiny_checkpoints import make_parser, report_checkpoint, require_new_folder, to_safetensors, write_checkpoint

from ..families import ORPHEUS

BEGIN, END_OF_TEXT = "<|begin_of_text|>", "<|eot_id|>"
CODES = 16
"""Codes of a codebook. With the released 4096, nearly all time would go into the output head."""
FAMILY = ORPHEUS.model_copy(update={"codebook_size": CODES})
SPECIAL = (BEGIN, END_OF_TEXT, *(f"<custom_token_{number}>" for number in range(FAMILY.first_number + len(FAMILY.slots) * CODES)))
SNAC_CONFIG: dict[str, Any] = {
    "sampling_rate": FAMILY.sample_rate,
    "encoder_dim": 4,
    "encoder_rates": [2, 4, 8, 8],
    "decoder_dim": 64,
    "decoder_rates": [8, 8, 4, 2],
    "attn_window_size": None,
    "codebook_size": CODES,
    "codebook_dim": 4,
    "vq_strides": [4, 2, 1],
    "noise": True,
    "depthwise": True,
}


def build(folder: Path, seed: int = 0) -> Path:
    """Write model and codec to a new folder. The same seed gives the same bytes. Raises `UserError` if the folder exists, or the package
    snac is missing."""
    require_new_folder(folder)
    tokenizer = make_tokenizer(SPECIAL)
    config = make_config(tokenizer.get_vocab_size())
    contents = {
        **make_tokenizer_files(tokenizer),
        CONFIG: files.json_bytes(config),
        "model.safetensors": make_weights(config, seed),
        VOICES: files.json_bytes({"family": FAMILY.model_dump()}),
        f"{CODEC_FOLDER}/{CONFIG}": files.json_bytes(SNAC_CONFIG),
        f"{CODEC_FOLDER}/{WEIGHTS}": make_codec_weights(seed),
    }
    return write_checkpoint(folder, contents)


def make_tokenizer(special: tuple[str, ...], words: int = 256) -> Tokenizer:
    """Llama 3's in form: so many words, most of them fillers beside the bytes, then the special tokens. If one of these is the
    beginning-of-text token, it is put before each text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    filler = [f"<unused {number}>" for number in range(words - len(alphabet))]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate([*alphabet, *filler])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if (begin := tokenizer.token_to_id(BEGIN)) is not None:
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", pair=None, special_tokens=[(BEGIN, begin)])
    return tokenizer


def make_tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Content of each file by name."""
    declared = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END_OF_TEXT,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    return {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": files.json_bytes(declared)}


def make_config(vocabulary: int) -> dict[str, Any]:
    """Content of a Llama's config.json with the rotary positions of Llama 3.2."""
    rope = {"rope_type": "llama3", "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64}
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
        "rope_scaling": rope,
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "initializer_range": 0.1,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def make_weights(config: dict[str, Any], seed: int) -> bytes:
    """`model.safetensors` for this config.json. The head is stored although it is tied, as in the released model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    return to_safetensors(model.state_dict())


def make_codec_weights(seed: int) -> bytes:
    """Return the weights file of `speech_codec/`. Raises `UserError` if the package snac is missing."""
    make_snac = import_snac()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return to_safetensors(make_snac(**SNAC_CONFIG).state_dict())


def main(argv: list[str]) -> int:
    """Body of the command line."""
    arguments = make_parser(
        "overtone.recipes.codec_lm.model.tiny_checkpoint", "Build a small random model in Orpheus' layout, with its codec."
    ).parse_args(argv)
    return report_checkpoint(build(arguments.folder, arguments.seed))


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
