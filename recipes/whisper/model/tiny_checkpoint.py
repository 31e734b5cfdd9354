"""Writes a small Whisper with random weights, and the tokenizer of the released ones, as a folder that transformers loads.

    python -m overtone.recipes.whisper.model.tiny_checkpoint FOLDER [--seed 0]

It is for tests: it takes the same code path as a released model, in seconds and without a download. It has all of Whisper's tokens, because
openai-whisper and faster-whisper know no other vocabulary, so most of its weights are embeddings.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import WhisperConfig, WhisperForConditionalGeneration

from overtone.data_prep.transcription.whisper_conversion import VOCABULARIES
from overtone.finetune.errors import catch_user_errors
from overtone.finetune.storage import files
from overtone.recipes.tiny_checkpoints import (
    draw_weights,
    make_parser,
    report_checkpoint,
    require_new_folder,
    to_safetensors,
    write_checkpoint,
)

from ..options import Options
from ..released_models import PROCESSOR, describe_whisper
from .generation_config import describe_generation
from .modeling import SINUSOIDS, make_processor
from .sequence_layout import load_tokenizer
from .vocabulary_check import list_byte_letters

WIDTH, HEADS = 32, 2
ENCODER_LAYERS, DECODER_LAYERS = 1, 2
"""A layer of the encoder computes 1,500 positions for each clip, one of the decoder those of its text."""
WEIGHT_STD = 0.05
"""Standard deviation of the initial weights. With the usual 0.02, so narrow a model starts with nearly equal logits."""
END = "<|endoftext|>"
TIMESTAMP = re.compile(r"<\|\d+\.\d\d\|>")
"""Tokens that the files of the released models do not list."""


def build(folder: Path, multilingual: bool = True, seed: int = 0, width: int = WIDTH) -> Path:
    """Write model, tokenizer and settings into a new folder; `width` is the size of the states. The same seed gives the same bytes. Raises
    `UserError` if the folder exists."""
    require_new_folder(folder)
    config = describe_whisper(width, ENCODER_LAYERS, DECODER_LAYERS, HEADS, multilingual)
    contents = {
        "config.json": files.json_bytes(config),
        "generation_config.json": files.json_bytes(describe_generation(make_processor(WhisperConfig(**config), Options()))),
        "preprocessor_config.json": files.json_bytes(PROCESSOR),
        "tokenizer.json": make_tokenizer(multilingual),
        "tokenizer_config.json": files.json_bytes(
            {"tokenizer_class": "WhisperTokenizer", **{f"{name}_token": END for name in ("bos", "eos", "pad", "unk")}}
        ),
        "model.safetensors": make_weights(config, seed),
    }
    return write_checkpoint(folder, contents)


@cache
def make_tokenizer(multilingual: bool) -> bytes:
    """`tokenizer.json`: openai-whisper's tokens and merges, as the tokenizers of the released models have them."""
    processor = make_processor(WhisperConfig(vocab_size=VOCABULARIES[1] if multilingual else VOCABULARIES[0]), Options())
    encoding = load_tokenizer(processor, "en", "transcribe").encoding
    letters = list_byte_letters()

    def write(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    ranks = encoding._mergeable_ranks
    vocabulary = {write(token): number for token, number in ranks.items()}
    merges = [(write(first), write(second)) for first, second in (split_token(token, ranks) for token in ranks if len(token) > 1)]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = sorted(encoding._special_tokens, key=encoding._special_tokens.__getitem__)
    tokenizer.add_special_tokens([token for token in special if not TIMESTAMP.fullmatch(token)])
    return tokenizer.to_str().encode()


def split_token(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens from which byte-pair encoding makes a token of two bytes or more: earlier merges come first."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        place = min(range(len(parts) - 1), key=lambda at: ranks.get(parts[at] + parts[at + 1], len(ranks)))
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts[0], parts[1]


def make_weights(config: dict[str, Any], seed: int) -> bytes:
    """`model.safetensors`: random weights, and the fixed positions of the encoder. The output head is that of the embedding."""
    with torch.device("meta"):
        model = WhisperForConditionalGeneration(WhisperConfig(**config))
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    positions = make_sinusoids(*shapes.pop(SINUSOIDS))
    return to_safetensors({**draw_weights(shapes, WEIGHT_STD, seed), SINUSOIDS: positions})


def make_sinusoids(positions: int, width: int) -> Tensor:
    """Whisper's encoder positions [positions, width]: sines, then cosines, of wavelengths from 2π to 20000π."""
    rates = torch.exp(-math.log(10_000) / (width // 2 - 1) * torch.arange(width // 2))
    angles = torch.arange(positions).unsqueeze(1) * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def main(argv: list[str]) -> int:
    """Body of the command line."""
    arguments = make_parser("overtone.recipes.whisper.model.tiny_checkpoint", "Write a small Whisper with random weights.").parse_args(argv)
    return report_checkpoint(build(arguments.folder, seed=arguments.seed))


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
