"""A small Qwen3-TTS checkpoint with random weights, from the package's own classes and in the released repository's file layout.

    python -m recipes.voice_clone.model.tiny_checkpoint FOLDER [--size nano|mini] [--seed 0]

For tests and for the demo: it goes through every line of code that a released model goes through, in seconds and without a download.
What it says is noise until it is trained.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import UserError, exit_code
from finetune.storage import files

from . import sampling_settings
from .model_configs import EXTRACTOR, SMALL, TextIds, codec_shape, model_shape

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor, nn

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
SENTENCES = (
    "The morning train leaves at seven, and it is never late.",
    "She counted the boats in the harbour and wrote the number down.",
    "Please close the window before the rain comes in.",
    "Nobody in the village had seen such a bright winter sky.",
    "He said that the answer was on the last page of the book.",
    "We walked along the river until the lights were gone.",
)
"""Text for the byte pairs of the tiny tokenizer."""
PAIRS = 400
"""Vocabulary of the tiny tokenizer before its special tokens: 256 bytes, the rest merges."""


def build(folder: Path, size: str = "nano", seed: int = 0) -> Path:
    """Write the checkpoint of a size (`nano`, 2 MB; `mini`, 20 MB) into a folder that does not exist yet. The same seed, the same bytes.

    Raises `UserError` for an unknown size and if the folder exists.
    """
    if size not in SMALL:
        raise UserError(f"--size {size}: known sizes are {', '.join(SMALL)}")
    if folder.exists():
        raise UserError(f"{folder} exists already; remove it or choose another name")
    tokenizer = text_tokenizer()
    shape = model_shape(SMALL[size], text_ids(tokenizer))
    codec = codec_shape(SMALL[size].codebook)
    contents: dict[str, bytes] = {
        **tokenizer_files(tokenizer),
        **settings(shape, codec),
        "model.safetensors": model_weights(shape, seed),
        "speech_tokenizer/model.safetensors": codec_weights(codec, seed),
    }
    temporary = files.fresh_folder(folder.parent, folder.name)
    for name, data in contents.items():
        files.make_folder((temporary / name).parent)
        files.write_in_place(temporary / name, data)
    files.commit_folder(temporary, folder)
    return folder


def text_tokenizer(sentences: Sequence[str] = SENTENCES, vocabulary: int = PAIRS) -> Tokenizer:
    """A byte-level BPE that splits text as Qwen2's does, with at most `vocabulary` tokens and the special ones. "assistant" and the line
    break are one token each: the layout drops a fixed number of tokens at both ends of the prompt."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(["assistant\nuser\n"] * 50 + list(sentences) * 5, trainer)
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def text_ids(tokenizer: Tokenizer) -> TextIds:
    """Where the special tokens are."""
    _, start, end, pad, bos, eos = (tokenizer.token_to_id(token) for token in SPECIAL)
    return TextIds(im_start=start, im_end=end, tts_pad=pad, tts_bos=bos, tts_eos=eos, vocabulary=tokenizer.get_vocab_size())


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The three files of a slow Qwen2 tokenizer, as the released repositories have them."""
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


def settings(shape: dict[str, Any], codec: dict[str, Any]) -> dict[str, bytes]:
    """Every other JSON file of the repository."""
    return {
        "config.json": files.json_bytes(shape),
        sampling_settings.CONFIG: files.json_bytes(sampling_settings.STOCK | {"max_new_tokens": 8192}),
        "preprocessor_config.json": files.json_bytes({"processor_class": "Qwen3TTSProcessor"}),
        "speech_tokenizer/config.json": files.json_bytes(codec),
        "speech_tokenizer/preprocessor_config.json": files.json_bytes(EXTRACTOR),
    }


def model_weights(shape: dict[str, Any], seed: int) -> bytes:
    """`model.safetensors`: talker, code predictor and speaker encoder with fresh weights."""
    import torch

    from data_prep.audio_codecs.qwen_tts_import import import_qwen_tts

    import_qwen_tts()
    from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**shape))
        spread_biases(model.talker, shape["initializer_range"])
        keep_scale(model.speaker_encoder, last="fc", size=0.5)
    return _safetensors(model.state_dict())


def spread_biases(talker: nn.Module, spread: float) -> None:
    """The package starts biases at zero, which no trained model has, and which would hide whether they are masked at padding."""
    import torch

    for name, parameter in talker.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.normal_(parameter, std=spread)


def keep_scale(module: nn.Module, last: str, size: float) -> None:
    """Fresh convolutions that keep a signal's size from layer to layer; the one that is called `last` brings it to about `size`.

    With the small weights of the other parts, a dozen layers on every voice would have the same vector and every sound would be silence.
    """
    from torch.nn import Conv1d, ConvTranspose1d, init

    for name, layer in module.named_modules():
        if isinstance(layer, Conv1d | ConvTranspose1d):
            overlap = layer.stride[0] if isinstance(layer, ConvTranspose1d) else 1
            inputs = layer.in_channels // layer.groups * layer.kernel_size[0] / overlap  # that reach one output
            init.normal_(layer.weight, std=(size if name == last else 1.0) / math.sqrt(inputs))
            if layer.bias is not None:
                init.zeros_(layer.bias)


def codec_weights(shape: dict[str, Any], seed: int) -> bytes:
    """`speech_tokenizer/model.safetensors`: the codec with random codebooks (with empty ones, every frame would get code 0)."""
    import torch

    from data_prep.audio_codecs.qwen_tts_import import import_qwen_tts

    import_qwen_tts()
    from qwen_tts.core import Qwen3TTSTokenizerV2Config, Qwen3TTSTokenizerV2Model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        codec = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**shape))
        for name, tensor in [*codec.named_parameters(), *codec.named_buffers()]:
            if name.endswith(("embed_sum", "embedding_sum")):
                tensor.data.normal_()
        keep_scale(codec.decoder, last="decoder.6.conv", size=0.01)
    return _safetensors(codec.state_dict())


def _safetensors(tensors: dict[str, Tensor]) -> bytes:
    from safetensors.torch import save

    return save({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, metadata={"format": "pt"})


def main(argv: list[str]) -> int:
    """Body of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.voice_clone.model.tiny_checkpoint", description="Build a small random Qwen3-TTS checkpoint."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", default="nano", choices=sorted(SMALL))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    build(arguments.folder, arguments.size, arguments.seed)
    print(f"{arguments.folder}: a random {arguments.size} checkpoint; it speaks noise until it is trained")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
