"""The speaker encoder of a Qwen3-TTS Base model: maps a clip to a vector of the speaker's voice.

It is an ECAPA-TDNN (https://huggingface.co/papers/2005.07143) over a log-mel spectrogram, a few per cent of the model's weights. The other
weights are not read, which saves memory and time.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import MASTER_RATE, Samples
from overtone.data_prep.audio_codecs.interface import UnsupportedModelError
from overtone.data_prep.audio_codecs.partial_weights import read_partial_weights
from overtone.data_prep.audio_codecs.qwen_tts_import import VOICE_MODEL, import_qwen_tts
from overtone.data_prep.parallel.torch_settings import disable_tf32
from overtone.finetune.errors import UserError
from overtone.finetune.storage.hub_download import commit_of
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.storage.model_security import CONFIG, check_config

if TYPE_CHECKING:
    from pydantic import JsonValue
    from torch import Tensor, nn

PREFIX = "speaker_encoder."
"""Prefix of the names of its weights in the model."""
SHORTEST = 0.25
"""Shortest clip in seconds: a shorter one does not identify a voice."""
WEIGHTS = "model*.safetensors"
"""Pattern of the weights files. It does not match those of the speech tokenizer, which are in a subfolder."""


@dataclass(frozen=True)
class QwenSpeakerEncoder:
    """Implements `SpeakerEncoder` of `data_prep/audio_codecs/interface.py`."""

    folder: Path
    digest: str
    """Digest of its weights and config: both model sizes, and all exports of a model, that share them produce the same vectors."""
    sample_rate: ClassVar[int] = MASTER_RATE

    def load(self, device: str = "cpu") -> LoadedQwenSpeakerEncoder:
        return LoadedQwenSpeakerEncoder(load_encoder(self.folder, device))


@dataclass(frozen=True)
class LoadedQwenSpeakerEncoder:
    """Implements `LoadedSpeakerEncoder` of `data_prep/audio_codecs/interface.py`."""

    module: nn.Module
    """The module that `load_encoder` returns."""
    sample_rate: ClassVar[int] = MASTER_RATE
    shortest_seconds: ClassVar[float] = SHORTEST

    @property
    def dimensions(self) -> int:
        return len(self.module.get_parameter("fc.bias"))

    def embed(self, clip: Samples) -> NDArray[np.float32]:
        return embed_clip(self.module, clip)


def open_qwen_speaker_encoder(option: str, model: str, commit: str | None = None) -> QwenSpeakerEncoder:
    """Open the encoder of a model: a local folder, or a name on the model hub (of one `commit`; default: the newest), of which the codec is
    not downloaded.

    Raises `UserError`, in the name of the command-line `option`, for a model without an encoder before its weights are downloaded.
    """
    folder = resolve_model(option, model, [CONFIG], commit)
    try:
        shape = read_base_config(folder)
        folder = resolve_model(option, model, [CONFIG, WEIGHTS], commit_of(folder))
        return QwenSpeakerEncoder(folder, compute_encoder_digest(folder, shape))
    except UserError as error:
        raise type(error)(f"{option} {model}: {error}") from error


def read_base_config(folder: Path) -> dict[str, Any]:
    """Return the content of config.json. Raises `UnsupportedModelError` unless it is a Qwen3-TTS Base model, the only kind with a speaker
    encoder."""
    config = check_config(folder, VOICE_MODEL)
    if (kind := config.get("tts_model_type")) != "base":
        raise UnsupportedModelError(
            f"{folder} is not a Qwen3-TTS Base model (tts_model_type {kind!r}); only those have the speaker encoder that is needed. "
            "Use Qwen/Qwen3-TTS-12Hz-0.6B-Base or -1.7B-Base, or an export made with --format base"
        )
    return config


def read_encoder_weights(folder: Path) -> dict[str, Tensor]:
    """Return the encoder's weights by their names in it; no other weights are read. Raises `UserError` if there are none or they are
    damaged."""
    found = read_partial_weights(sorted(folder.glob(WEIGHTS)), PREFIX)
    if not found:
        raise UserError(f"{folder}: its weights hold no speaker encoder; use a Base model or an export made with --format base")
    return found


def compute_encoder_digest(folder: Path, shape: dict[str, JsonValue]) -> str:
    """Return the SHA-256 over the names, types, shapes and values of the weights, and over the encoder's part of config.json."""
    total = hashlib.sha256(json.dumps(shape.get("speaker_encoder_config"), sort_keys=True).encode())
    for name, tensor in sorted(read_encoder_weights(folder).items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.float().numpy().tobytes())
    return total.hexdigest()


def load_encoder(folder: Path, device: str = "cpu") -> nn.Module:
    """Load the encoder alone, in fp32. It maps log-mel [B, frames, 128] → [B, H]. Raises `UserError` if weights and config.json do not
    match."""
    import_qwen_tts()
    from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSSpeakerEncoderConfig
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSSpeakerEncoder

    from overtone.finetune.storage.construction_limits import limit_construction

    shape, weights = read_base_config(folder), read_encoder_weights(folder)
    try:
        with limit_construction(folder):
            encoder: nn.Module = Qwen3TTSSpeakerEncoder(Qwen3TTSSpeakerEncoderConfig(**shape["speaker_encoder_config"])).float().eval()
        encoder.load_state_dict(weights)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{folder}: the speaker encoder's weights and config.json do not fit ({error}); fetch the model again") from error
    return encoder.to(device)


def embed_clip(encoder: nn.Module, samples: Samples) -> NDArray[np.float32]:
    """Return the vector [H] of one clip at 24 kHz. It uses the package's own spectrogram, on the CPU: 128 mel bands up to 12 kHz, hops of
    256 samples."""
    import torch
    from qwen_tts.core.models.modeling_qwen3_tts import mel_spectrogram

    with torch.inference_mode(), disable_tf32():
        batch = torch.from_numpy(samples)[None]
        mel = mel_spectrogram(batch, n_fft=1024, num_mels=128, sampling_rate=MASTER_RATE, hop_size=256, win_size=1024, fmin=0, fmax=12000)
        device = next(encoder.parameters()).device
        found: NDArray[np.float32] = encoder(mel.transpose(1, 2).to(device))[0].cpu().numpy().copy()
        return found
