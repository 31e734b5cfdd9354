"""The 12 Hz speech tokenizer of a Qwen3-TTS model: find it, load it, encode batches of clips.

1920 samples at 24 kHz make one frame of 16 codes. A clip is padded with zeros to whole frames before it joins a batch: the last, partial
frame is the only one that would otherwise depend on its neighbours in the batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.audio import MASTER_RATE, Samples
from data_prep.device import without_tf32
from data_prep.hub import folder_of
from data_prep.qwen import CODEC, CODEC_FOLDER, import_qwen_tts
from finetune import files
from finetune.errors import UserError
from finetune.model_gate import admit, check_config, require_safetensors

SAMPLES_PER_FRAME = 1920
CODEBOOKS = 16

Codes = NDArray[np.uint16]


class CodecError(Exception):
    """One clip's codes are not what they must be."""


def find_codec(model: str) -> Path:
    """The tokenizer's folder of a model: a local folder, or a name on the model hub, of which only that part is fetched. `UserError`."""
    folder = folder_of("--model", model, [f"{CODEC_FOLDER}/*.json", f"{CODEC_FOLDER}/*.safetensors"])
    config = folder / CODEC_FOLDER / "config.json"
    if not config.is_file():
        raise UserError(f"--model {model}: no {CODEC_FOLDER}/config.json in {folder}; give a Qwen3-TTS 12 Hz model")
    try:
        check_config(folder / CODEC_FOLDER, CODEC)
    except UserError as error:
        raise UserError(f"--model {model}: {error}; give a Qwen3-TTS 12 Hz model") from error
    return folder / CODEC_FOLDER


def codec_digest(codec: Path) -> str:
    """SHA-256 over names and contents of the tokenizer's files: two models with the same tokenizer give the same codes."""
    paths = sorted([*codec.glob("*.safetensors"), *codec.glob("*.json")])
    if not any(path.suffix == ".safetensors" for path in paths):
        raise UserError(f"{codec} holds no *.safetensors; the download is incomplete, fetch the model again")
    return hashlib.sha256("".join(f"{path.name} {files.digest(path)}\n" for path in paths).encode()).hexdigest()


def codebook_size(codec: Path) -> int:
    """Codes of each codebook, as the tokenizer's config says. Raises `UserError` if it does not."""
    encoder = check_config(codec, CODEC).get("encoder_config")
    size = encoder.get("codebook_size") if isinstance(encoder, dict) else None
    if not isinstance(size, int):
        raise UserError(f"{codec / 'config.json'}: no encoder_config.codebook_size; the download is incomplete, fetch the model again")
    return size


def load_codec(codec: Path, device: str) -> Any:
    """The tokenizer in fp32, so that codes do not depend on the device's favourite precision."""
    package = import_qwen_tts()
    import torch

    require_safetensors(codec, "the speech tokenizer")
    with admit(codec, CODEC) as clean:
        try:
            return package.Qwen3TTSTokenizer.from_pretrained(
                clean, trust_remote_code=False, use_safetensors=True, dtype=torch.float32, device_map=device
            )
        except Exception as error:  # a damaged folder fails in many ways inside transformers
            raise UserError(f"{codec} cannot be loaded ({type(error).__name__}: {error}); fetch the model again") from error


def frames_of(samples: int) -> int:
    """Frames of a clip: the last may be partial."""
    return -(-samples // SAMPLES_PER_FRAME)


def encode(tokenizer: Any, clips: Sequence[Samples]) -> list[Codes]:
    """[T][16] for each clip at 24 kHz, T = ceil(samples / 1920)."""
    padded = [np.pad(clip, (0, frames_of(len(clip)) * SAMPLES_PER_FRAME - len(clip))) for clip in clips]
    with without_tf32():
        encoded = tokenizer.encode(padded, sr=MASTER_RATE).audio_codes
    return [_checked(codes.cpu().numpy(), len(clip), tokenizer) for codes, clip in zip(encoded, clips, strict=True)]


def _checked(codes: NDArray[np.int64], samples: int, tokenizer: Any) -> Codes:
    size = tokenizer.config.encoder_config.codebook_size
    if codes.shape != (frames_of(samples), CODEBOOKS):
        raise CodecError(f"{samples} samples gave codes of shape {codes.shape}, expected {(frames_of(samples), CODEBOOKS)}")
    if codes.min() < 0 or codes.max() >= size:
        raise CodecError(f"codes from {codes.min()} to {codes.max()} do not fit a codebook of {size}")
    return codes.astype(np.uint16)
