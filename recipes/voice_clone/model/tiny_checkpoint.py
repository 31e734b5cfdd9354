"""A small Qwen3-TTS checkpoint with random weights, from the package's own classes and with the files of the released repositories.

    python -m overtone.recipes.voice_clone.model.tiny_checkpoint FOLDER [--size nano|mini] [--seed 0]

For tests and for trying the commands: it runs the same code as a released model, in seconds and without a download. It speaks noise until
it is trained.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import Conv1d, ConvTranspose1d, init
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from overtone.data_prep.audio_codecs.qwen_tts_import import import_qwen_tts
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files
from overtone.recipes.qwen3_tts.model.config_factory import PREPROCESSOR_CONFIG, SMALL, TextIds, make_codec_config, make_model_config
from overtone.recipes.qwen3_tts.model.sampling_settings import STOCK
from overtone.recipes.speech.sampling_settings import CONFIG
from overtone.recipes.tiny_checkpoints import (
    make_parser,
    report_checkpoint,
    require_new_folder,
    to_safetensors,
    train_byte_tokenizer,
    write_checkpoint,
)

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
SENTENCES = (
    "The morning train leaves at seven, and it is never late.",
    "She counted the boats in the harbour and wrote the number down.",
    "Please close the window before the rain comes in.",
    "Nobody in the village had seen such a bright winter sky.",
    "He said that the answer was on the last page of the book.",
    "We walked along the river until the lights were gone.",
)
"""Training text of the tiny tokenizer."""
BASE_VOCABULARY = 400
"""Vocabulary of the tiny tokenizer without special tokens: 256 bytes, the rest merges."""


def build(folder: Path, size: str = "nano", seed: int = 0) -> Path:
    """Write the checkpoint of a size (`nano`, 2 MB; `mini`, 20 MB) to a new folder. The same seed gives the same bytes.

    Raises `UserError` for an unknown size and if the folder exists.
    """
    if size not in SMALL:
        raise UserError(f"--size {size}: known sizes are {', '.join(SMALL)}")
    require_new_folder(folder)
    tokenizer = train_text_tokenizer()
    shape = make_model_config(SMALL[size], find_text_ids(tokenizer))
    codec = make_codec_config(SMALL[size].codebook)
    contents: dict[str, bytes] = {
        **make_tokenizer_files(tokenizer),
        **make_config_files(shape, codec),
        "model.safetensors": make_model_weights(shape, seed),
        "speech_tokenizer/model.safetensors": make_codec_weights(codec, seed),
    }
    return write_checkpoint(folder, contents)


def train_text_tokenizer(sentences: Sequence[str] = SENTENCES, vocabulary: int = BASE_VOCABULARY) -> Tokenizer:
    """A byte-level BPE that splits text as Qwen2's does, with at most `vocabulary` tokens plus the special ones. "assistant" and the line
    break are one token each, because the layout drops a fixed number of tokens at both ends of the prompt."""
    return train_byte_tokenizer(PRETOKENIZE_REGEX, ["assistant\nuser\n"] * 50 + list(sentences) * 5, vocabulary, SPECIAL)


def find_text_ids(tokenizer: Tokenizer) -> TextIds:
    """Ids of the special tokens, and the vocabulary size."""
    _, start, end, pad, bos, eos = (tokenizer.token_to_id(token) for token in SPECIAL)
    return TextIds(im_start=start, im_end=end, tts_pad=pad, tts_bos=bos, tts_eos=eos, vocabulary=tokenizer.get_vocab_size())


def make_tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The three files of a slow Qwen2 tokenizer, as in the released repositories."""
    model = json.loads(tokenizer.to_str())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    special = {str(tokenizer.token_to_id(token)): {"content": token, "special": True} for token in SPECIAL}
    declared = {
        "tokenizer_class": "Qwen2Tokenizer",
        "processor_class": "Qwen3TTSProcessor",
        "added_tokens_decoder": special,
        "additional_special_tokens": list(SPECIAL[1:]),
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "bos_token": None,
        "errors": "replace",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
    }
    return {
        "vocab.json": files.json_bytes(model["vocab"]),
        "merges.txt": ("#version: 0.2\n" + "\n".join(merges) + "\n").encode(),
        "tokenizer_config.json": files.json_bytes(declared),
    }


def make_config_files(shape: dict[str, Any], codec: dict[str, Any]) -> dict[str, bytes]:
    """All other JSON files of the repository."""
    return {
        "config.json": files.json_bytes(shape),
        CONFIG: files.json_bytes(STOCK | {"max_new_tokens": 8192}),
        "preprocessor_config.json": files.json_bytes({"processor_class": "Qwen3TTSProcessor"}),
        "speech_tokenizer/config.json": files.json_bytes(codec),
        "speech_tokenizer/preprocessor_config.json": files.json_bytes(PREPROCESSOR_CONFIG),
    }


def make_model_weights(shape: dict[str, Any], seed: int) -> bytes:
    """`model.safetensors`: talker, code predictor and speaker encoder with random weights."""
    import_qwen_tts()
    from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**shape))
        init_biases(model.talker, shape["initializer_range"])
        init_convolutions(model.speaker_encoder, last="fc", size=0.5)
    return to_safetensors(model.state_dict())


def init_biases(talker: nn.Module, spread: float) -> None:
    """Random biases. The package starts them at zero, unlike any trained model, which would hide whether padding masks them."""
    for name, parameter in talker.named_parameters():
        if name.endswith(".bias"):
            init.normal_(parameter, std=spread)


def init_convolutions(module: nn.Module, last: str, size: float) -> None:
    """Random convolutions that keep the scale of a signal from layer to layer; the one named `last` scales it to about `size`.

    With the small weights of the other parts, a dozen layers would give every voice the same vector and turn every sound into silence.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, Conv1d | ConvTranspose1d):
            overlap = layer.stride[0] if isinstance(layer, ConvTranspose1d) else 1
            inputs = layer.in_channels // layer.groups * layer.kernel_size[0] / overlap  # inputs of one output
            init.normal_(layer.weight, std=(size if name == last else 1.0) / math.sqrt(inputs))
            if layer.bias is not None:
                init.zeros_(layer.bias)


def make_codec_weights(shape: dict[str, Any], seed: int) -> bytes:
    """`speech_tokenizer/model.safetensors`: the codec with random codebooks (with empty ones, every frame would get code 0)."""
    import_qwen_tts()
    from qwen_tts.core import Qwen3TTSTokenizerV2Config, Qwen3TTSTokenizerV2Model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        codec = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**shape))
        for name, tensor in [*codec.named_parameters(), *codec.named_buffers()]:
            if name.endswith(("embed_sum", "embedding_sum")):
                tensor.data.normal_()
        init_convolutions(codec.decoder, last="decoder.6.conv", size=0.01)
    return to_safetensors(codec.state_dict())


def main(argv: list[str]) -> int:
    """Body of the command line."""
    parser = make_parser("overtone.recipes.voice_clone.model.tiny_checkpoint", "Build a small random Qwen3-TTS checkpoint.")
    parser.add_argument("--size", default="nano", choices=sorted(SMALL), help="2 or 20 MB (default %(default)s)")
    arguments = parser.parse_args(argv)
    return report_checkpoint(build(arguments.folder, arguments.size, arguments.seed))


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
