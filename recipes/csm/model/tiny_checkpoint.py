"""A small CSM checkpoint with random weights, codec included, from transformers' own classes and with the files of the released folder.

    python -m overtone.recipes.csm.model.tiny_checkpoint FOLDER [--seed 0]

For tests and for trying the commands: it runs the same code as the released model, in seconds and without a download. It speaks noise until
it is trained.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer

from overtone.finetune.errors import catch_user_errors
from overtone.finetune.storage import files
from overtone.recipes.tiny_checkpoints import (
    make_parser,
    report_checkpoint,
    require_new_folder,
    to_safetensors,
    train_byte_tokenizer,
    write_checkpoint,
)

from .model_config import RELEASED
from .modeling import COPY
from .sequence_layout import AUDIO, AUDIO_END

if TYPE_CHECKING:
    from transformers import PretrainedConfig

BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
SPECIAL = (BEGIN, END, AUDIO, AUDIO_END)
BASE_VOCABULARY = 300
"""Vocabulary of the tokenizer without special tokens: 256 bytes, the rest merges."""
SENTENCES = (
    "The morning train leaves at seven, and it is never late.",
    "She counted the boats in the harbour and wrote the number down.",
    "Nobody in the village had seen such a bright winter sky.",
)
"""Training text of the tokenizer."""
PRETOKENIZE = r"\p{N}{1,3}|\p{L}+|[^\p{L}\p{N}]+"
"""Pattern of pieces; as in Llama 3's tokenizer, up to three digits are one."""
TEMPLATE = (
    "{% for message in messages %}{{ bos_token + '[' + message['role'] + ']' + message['content'][0]['text'] + eos_token }}"
    "{% if message['content'] | length > 1 %}{{ '" + AUDIO + AUDIO_END + "' }}{% endif %}{% endfor %}"
)
"""Makes the same prompts as the released model's chat template."""
CODEBOOKS, CODES = 4, 32
"""Codebooks and codes of the tiny codec; transformers 5 needs a power of two as the number of codes."""


def build(folder: Path, seed: int = 0, codebooks: int = CODEBOOKS, width: int = 32) -> Path:
    """Write the checkpoint to a new folder, with a backbone of this hidden size. The same seed gives the same bytes. Raises `UserError` if
    the folder exists."""
    require_new_folder(folder)
    tokenizer = train_byte_tokenizer(PRETOKENIZE, SENTENCES * 5, BASE_VOCABULARY, SPECIAL)
    config = make_config(tokenizer, codebooks, width)
    contents: dict[str, bytes] = {
        "config.json": files.json_bytes(make_config_document(config)),
        "model.safetensors": make_weights(config, seed),
        "generation_config.json": files.json_bytes(make_generation_config(config)),
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": files.json_bytes(make_tokenizer_config()),
        "preprocessor_config.json": files.json_bytes(make_extractor_config()),
        "chat_template.jinja": TEMPLATE.encode(),
    }
    return write_checkpoint(folder, contents)


def make_config(tokenizer: Tokenizer, codebooks: int = CODEBOOKS, width: int = 32) -> PretrainedConfig:
    """The `CsmConfig`: every kind of part of the released model, with 4 codebooks of 32 codes instead of 32 of 2048."""
    from transformers import CsmConfig, CsmDepthDecoderConfig, MimiConfig

    begin, _, audio, audio_end = (tokenizer.token_to_id(token) for token in SPECIAL)
    shared: dict[str, Any] = {
        "num_codebooks": codebooks,
        "vocab_size": CODES + 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.2,
    }
    depth = CsmDepthDecoderConfig(
        **shared,
        backbone_hidden_size=width,
        hidden_size=width // 2,
        intermediate_size=width,
        num_hidden_layers=1,
        rope_scaling=RELEASED["depth_decoder_config"]["rope_scaling"],
    )
    codec = MimiConfig(
        codebook_size=CODES,
        num_quantizers=codebooks,
        hidden_size=16,
        num_filters=4,
        upsampling_ratios=[8, 6, 5, 4],
        codebook_dim=8,
        vector_quantization_hidden_dimension=8,
        upsample_groups=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=32,
    )
    return CsmConfig(
        **shared,
        text_vocab_size=tokenizer.get_vocab_size(),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        max_position_embeddings=2048,
        bos_token_id=begin,
        pad_token_id=audio,
        audio_token_id=audio,
        audio_eos_token_id=audio_end,
        codebook_pad_token_id=CODES + 2,
        rope_scaling=RELEASED["rope_scaling"],
        depth_decoder_config=depth,
        codec_config=codec,
    )


def make_config_document(config: PretrainedConfig) -> dict[str, Any]:
    """The config's JSON, as transformers saves it."""
    return {**config.to_dict(), "architectures": ["CsmForConditionalGeneration"], "dtype": "float32"}


def make_generation_config(config: PretrainedConfig) -> dict[str, Any]:
    """Return the generation config of the released folder, sampling included."""
    sampling = {"do_sample": True, "temperature": 0.9, "top_k": min(50, CODES)}
    steps = config.num_codebooks - 1
    depth = {f"depth_decoder_{key}": value for key, value in {**sampling, "min_new_tokens": steps, "max_new_tokens": steps}.items()}
    return {"max_new_tokens": 125, **sampling, **depth}


def make_tokenizer_config() -> dict[str, Any]:
    """`tokenizer_config.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "processor_class": "CsmProcessor",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }


def make_extractor_config() -> dict[str, Any]:
    """`preprocessor_config.json`, of the feature extractor."""
    return {
        "feature_extractor_type": "EncodecFeatureExtractor",
        "processor_class": "CsmProcessor",
        "feature_size": 1,
        "sampling_rate": 24000,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
    }


def make_weights(config: PretrainedConfig, seed: int) -> bytes:
    """`model.safetensors` with random weights, the shared table of codes once."""
    from transformers import CsmForConditionalGeneration

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CsmForConditionalGeneration(config)
        for name, tensor in [*model.codec_model.named_parameters(), *model.codec_model.named_buffers()]:
            if name.endswith("embed_sum"):  # empty codebooks would give every frame code 0
                tensor.data.normal_()
    return to_safetensors({name: tensor for name, tensor in model.state_dict().items() if name != COPY})


def main(argv: list[str]) -> int:
    """Body of the command line."""
    arguments = make_parser("overtone.recipes.csm.model.tiny_checkpoint", "Build a small random CSM checkpoint.").parse_args(argv)
    return report_checkpoint(build(arguments.folder, arguments.seed))


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
