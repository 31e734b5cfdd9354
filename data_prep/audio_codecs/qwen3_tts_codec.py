"""The codec of Qwen3-TTS 12 Hz models, called speech tokenizer there: find it, load it, encode clips and decode codes.

1920 samples at 24 kHz make one frame of 16 codes. A clip is padded with zeros to whole frames before it joins a batch: otherwise the codes
of its partial last frame would depend on the other clips of the batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from overtone.data_prep.audio.waveform import MASTER_RATE, Samples
from overtone.data_prep.audio_codecs.interface import CodeFormat, Codes, check_codes
from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC, CODEC_FOLDER, import_qwen_tts
from overtone.data_prep.parallel.torch_settings import disable_tf32
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.storage.model_security import admit, check_config, require_safetensors

if TYPE_CHECKING:
    from qwen_tts import Qwen3TTSTokenizer

RECIPE = "voice_clone"
"""The recipe that trains on these codes."""
RELEASED_MODEL = "Qwen/Qwen3-TTS-12Hz-1.7B-Base"
SAMPLES_PER_FRAME = 1920
CODEBOOKS = 16
ENCODER_CHANNELS = 64
"""Channels of the encoder's widest layer, which works at the rate of the samples."""
ARRAYS_AT_ONCE = 4
"""Approximate number of arrays of that layer's size that exist at the same time."""
RELEASED_FORMAT = CodeFormat(MASTER_RATE, SAMPLES_PER_FRAME, CODEBOOKS, 2048)
"""Format of the codes of every released Qwen3-TTS 12 Hz model; 2048 is `codebook_size` in their tokenizer's config."""


@dataclass(frozen=True)
class QwenCodec:
    """Implements `Codec` of `data_prep/audio_codecs/interface.py`."""

    folder: Path
    sample_rate: ClassVar[int] = MASTER_RATE
    samples_per_frame: ClassVar[int] = SAMPLES_PER_FRAME
    frame_rate: ClassVar[float] = MASTER_RATE / SAMPLES_PER_FRAME
    codebooks: ClassVar[int] = CODEBOOKS
    recipe: ClassVar[str] = RECIPE

    @property
    def model(self) -> Path:
        return self.folder.parent

    @property
    def codebook_size(self) -> int:
        return read_codebook_size(self.folder)

    def digest(self) -> str:
        return compute_codec_digest(self.folder)

    def estimate_worker_bytes(self, seconds: float) -> int:
        weights = sum(path.stat().st_size for path in self.folder.glob("*.safetensors"))
        fp32 = 4
        return weights + round(seconds * MASTER_RATE * ENCODER_CHANNELS * fp32 * ARRAYS_AT_ONCE)

    def load(self, device: str) -> LoadedQwenCodec:
        return LoadedQwenCodec(load_codec(self.folder, device))


@dataclass(frozen=True)
class LoadedQwenCodec:
    """Implements `LoadedCodec` of `data_prep/audio_codecs/interface.py`."""

    tokenizer: Qwen3TTSTokenizer
    """The tokenizer that `load_codec` returns."""

    def encode(self, clips: Sequence[Samples]) -> list[Codes]:
        return encode_clips(self.tokenizer, clips)

    def decode(self, codes: Codes) -> Samples:
        import torch

        waves, _ = self.tokenizer.decode([{"audio_codes": torch.from_numpy(codes.astype(np.int64))}])
        return np.asarray(waves[0], dtype=np.float32)


def open_qwen_codec(option: str, model: str, commit: str | None) -> QwenCodec:
    """Open the codec of a Qwen3-TTS 12 Hz model, as `data_prep/audio_codecs/selection.py` opens it. Raises `UserError`."""
    return QwenCodec(find_codec(model, option, commit))


def find_codec(model: str, option: str = "--model", commit: str | None = None) -> Path:
    """Return the folder of a model's speech tokenizer. `model` is a local folder, the name of a demo model, or a name on the model hub, of
    which only that folder is downloaded (of one `commit`; default: the newest).

    Raises `UserError`, in the name of the command-line `option`, if the model is not a Qwen3-TTS 12 Hz model.
    """
    folder = resolve_model(option, model, [f"{CODEC_FOLDER}/*.json", f"{CODEC_FOLDER}/*.safetensors"], commit)
    config = folder / CODEC_FOLDER / "config.json"
    if not config.is_file():
        raise UserError(f"{option} {model}: no {CODEC_FOLDER}/config.json in {folder}; give a Qwen3-TTS 12 Hz model")
    try:
        check_config(folder / CODEC_FOLDER, CODEC)
    except UserError as error:
        raise UserError(f"{option} {model}: {error}; give a Qwen3-TTS 12 Hz model") from error
    return folder / CODEC_FOLDER


def compute_codec_digest(codec: Path) -> str:
    """Return the SHA-256 over the names and contents of the tokenizer's files: models with the same tokenizer produce the same codes."""
    paths = sorted([*codec.glob("*.safetensors"), *codec.glob("*.json")])
    if not any(path.suffix == ".safetensors" for path in paths):
        raise UserError(f"{codec} holds no *.safetensors; the download is incomplete, fetch the model again")
    return hashlib.sha256("".join(f"{path.name} {files.digest(path)}\n" for path in paths).encode()).hexdigest()


def read_codebook_size(codec: Path) -> int:
    """Return the number of codes in each codebook, from the tokenizer's config. Raises `UserError` if it is missing there."""
    encoder = check_config(codec, CODEC).get("encoder_config")
    size = encoder.get("codebook_size") if isinstance(encoder, dict) else None
    if not isinstance(size, int):
        raise UserError(f"{codec / 'config.json'}: no encoder_config.codebook_size; the download is incomplete, fetch the model again")
    return size


def load_codec(codec: Path, device: str) -> Qwen3TTSTokenizer:
    """Load the `Qwen3TTSTokenizer` of a folder, in fp32 so that the codes do not depend on the device's default precision.

    Raises `UserError` if it cannot be loaded.
    """
    package = import_qwen_tts()
    import torch

    require_safetensors(codec, "the speech tokenizer")
    with admit(codec, CODEC) as clean:
        try:
            return package.Qwen3TTSTokenizer.from_pretrained(
                clean, trust_remote_code=False, use_safetensors=True, dtype=torch.float32, device_map=device
            )
        except UserError:
            raise
        except Exception as error:  # a damaged folder fails in many ways inside transformers
            raise UserError(f"{codec} cannot be loaded ({type(error).__name__}: {error}); fetch the model again") from error


def encode_clips(tokenizer: Qwen3TTSTokenizer, clips: Sequence[Samples]) -> list[Codes]:
    """Return [frames, 16] of each clip at 24 kHz, where frames = ceil(samples / 1920). Raises `CodecError` for codes of a wrong shape or
    range."""
    padded = [np.pad(clip, (0, -len(clip) % SAMPLES_PER_FRAME)) for clip in clips]
    with disable_tf32():
        encoded = tokenizer.encode(padded, sr=MASTER_RATE).audio_codes
    wanted = replace(RELEASED_FORMAT, codebook_size=tokenizer.config.encoder_config.codebook_size)
    return [check_codes(codes.cpu().numpy(), wanted.count_frames(len(clip)), wanted) for codes, clip in zip(encoded, clips, strict=True)]
