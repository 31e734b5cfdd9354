"""Whisper models in the format of transformers, from a folder or the hub, as weights of openai-whisper: only the names of layers differ.

Fine-tuned Whisper models are published in this format. `pytorch_model.bin` is not read; a model needs safetensors.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from overtone.data_prep.transcription.faster_whisper_engine import PREFIX
from overtone.data_prep.transcription.whisper_languages import WHISPER_OPTION
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.finetune.storage.model_classes import COMMON_TOKENIZERS
from overtone.finetune.storage.model_resolver import is_hub_name, resolve_model
from overtone.finetune.storage.model_security import CONFIG, Kind, check_config, require_safetensors
from overtone.finetune.storage.strict_json import read_object

if TYPE_CHECKING:
    from torch import Tensor
    from whisper import Whisper

CLASSES = {
    "tokenizer_class": COMMON_TOKENIZERS | {"WhisperTokenizer", "WhisperTokenizerFast"},
    "feature_extractor_type": {"WhisperFeatureExtractor"},
    "processor_class": {"WhisperProcessor"},
}
KIND = Kind("a Whisper model of transformers", frozenset({"whisper"}), classes=CLASSES)
GENERATION = "generation_config.json"
WEIGHTS = ("model.safetensors", "model-*.safetensors")
"""Patterns of the weights files. They do not match `model.fp32-*.safetensors` and files in `checkpoint-*/`, which some repositories also
have."""
PATTERNS = (CONFIG, GENERATION, *WEIGHTS)
NAMES = (
    (r"^model\.", ""),
    (r"\.layers\.", ".blocks."),
    (r"\.self_attn_layer_norm\.", ".attn_ln."),
    (r"\.encoder_attn_layer_norm\.", ".cross_attn_ln."),
    (r"\.final_layer_norm\.", ".mlp_ln."),
    (r"\.self_attn\.", ".attn."),
    (r"\.encoder_attn\.", ".cross_attn."),
    (r"\.q_proj\.", ".query."),
    (r"\.k_proj\.", ".key."),
    (r"\.v_proj\.", ".value."),
    (r"\.out_proj\.", ".out."),
    (r"\.fc1\.", ".mlp.0."),
    (r"\.fc2\.", ".mlp.2."),
    (r"^encoder\.layer_norm\.", "encoder.ln_post."),
    (r"^decoder\.layer_norm\.", "decoder.ln."),
    (r"\.embed_positions\.weight$", ".positional_embedding"),
    (r"\.embed_tokens\.", ".token_embedding."),
)
"""Part of a name in transformers → the part in openai-whisper."""
SIZES = {
    "n_mels": "num_mel_bins", "n_audio_ctx": "max_source_positions", "n_audio_state": "d_model", "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers", "n_vocab": "vocab_size", "n_text_ctx": "max_target_positions", "n_text_state": "d_model",
    "n_text_head": "decoder_attention_heads", "n_text_layer": "decoder_layers",
}  # fmt: skip
"""Dimension of openai-whisper → key of config.json."""
VOCABULARIES = (51864, 51865, 51866)
"""Sizes of the English, the multilingual and the newer multilingual vocabulary, whose tokens openai-whisper knows."""


def is_transformers_whisper(name: str) -> bool:
    """Return whether a model name is a folder, or a name on the hub."""
    return not name.startswith(PREFIX) and (Path(name).is_dir() or is_hub_name(name))


def find_weights(name: str, option: str = WHISPER_OPTION) -> list[Path]:
    """Return the files of the weights of a model, the largest first; those of a model on the hub are downloaded. Raises `UserError`."""
    folder = resolve_model(option, name, PATTERNS)
    require_safetensors(folder, option)
    found = [path for pattern in WEIGHTS for path in folder.glob(pattern)]
    if not found:
        raise UserError(f"{option} {name}: {folder} has none of the files {', '.join(WEIGHTS)}; give another model")
    return sorted(found, key=lambda path: (-path.stat().st_size, path.name))


def digest_weights(name: str, option: str = WHISPER_OPTION) -> str:
    """Return the SHA-256 of the files of the weights, joined by commas."""
    return ",".join(files.digest(path) for path in find_weights(name, option))


def read_dimensions(folder: Path, name: str, option: str = WHISPER_OPTION) -> dict[str, int]:
    """Return the dimensions of openai-whisper for the config.json of a folder. Raises `UserError`."""
    try:
        config = check_config(folder, KIND)
    except UserError as error:
        raise UserError(f"{option} {name}: {error}") from None
    if missing := [key for key in SIZES.values() if not isinstance(config.get(key), int)]:
        raise UserError(f"{option} {name}: {folder / CONFIG} has no number {missing[0]}; download the model again")
    dims = {size: config[key] for size, key in SIZES.items()}
    if dims["n_vocab"] not in VOCABULARIES:
        raise UserError(f"{option} {name}: its vocabulary of {dims['n_vocab']} tokens is not one of Whisper's; give another model")
    return dims


class WhisperCheckpoint(TypedDict):
    """A checkpoint of openai-whisper."""

    dims: dict[str, int]
    model_state_dict: dict[str, Tensor]
    alignment_heads: list[tuple[int, int]] | None
    """Pairs of layer and head; None: the model of transformers names none."""


def read_checkpoint(name: str, option: str = WHISPER_OPTION) -> WhisperCheckpoint:
    """Read the weights as a checkpoint of openai-whisper. Raises `UserError`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights = find_weights(name, option)
    folder = weights[0].parent
    dims = read_dimensions(folder, name, option)
    try:
        tensors = {name: tensor.float() for path in weights for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise UserError(f"{option} {name}: {folder} has damaged weights ({error}); download the model again") from error
    tensors.pop("proj_out.weight", None)  # tied to the embedding
    generation = read_object(folder / GENERATION) if (folder / GENERATION).is_file() else {}
    return {
        "dims": dims,
        "model_state_dict": {translate_name(key): value for key, value in tensors.items()},
        "alignment_heads": generation.get("alignment_heads"),
    }


def translate_name(name: str) -> str:
    """Return the name of a tensor in openai-whisper."""
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def set_alignment_heads(model: Whisper, heads: list[tuple[int, int]] | None, name: str, option: str = WHISPER_OPTION) -> None:
    """Set which attention heads align words with time: pairs of layer and head. None: openai-whisper uses the upper half of the layers.

    Raises `UserError` for heads that the model does not have.
    """
    import torch

    if heads is None:
        return
    mask = torch.zeros(model.dims.n_text_layer, model.dims.n_text_head, dtype=torch.bool)
    try:
        for layer, head in heads:
            mask[layer, head] = True
    except (IndexError, TypeError, ValueError) as error:
        raise UserError(f"{option} {name}: its alignment_heads do not fit the model ({error}); download it again") from error
    model.register_buffer("alignment_heads", mask.to_sparse(), persistent=False)
