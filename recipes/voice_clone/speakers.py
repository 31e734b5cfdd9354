"""One vector for each speaker: the fp32 mean of the base's own speaker encoder over several reference clips.

One vector from one clip would carry that clip's mood; the mean of several is the voice. The vectors are computed once, kept in
`<run.dir>/cache/speakers.safetensors`, and computed again when the data, the reference clips or the encoder change.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune import files
from finetune.errors import UserError

from .layout import Ids
from .survey import assign_rows, describe, survey

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from finetune.config import Config

SAMPLE_RATE = 24000
"""Of the speaker encoder, Hz."""
SHORTEST = 0.25
"""Seconds below which a reference clip says nothing about a voice."""
ENCODER = "speaker_encoder."


@dataclass(frozen=True)
class Known:
    """The speakers of a run, in the order of their vectors."""

    vectors: Tensor
    """[speakers, H] fp32."""
    state: dict[str, Any]
    """JSON: `speakers` (name, row, language, clips, seconds), `data`, `base`."""


def prepare(config: Config) -> None:
    """Survey the data and compute the speaker vectors, unless the cache already holds exactly these.

    Raises `UserError` with file and line for a row without speaker, codes or reference, and for a speaker who is only in `data.val`.
    """
    from finetune.models import resolve_source

    options: Any = config.options
    base = resolve_source(config.model.source, config.model.revision)
    shape = base_config(base)
    surveyed = survey(config, Ids.of(shape))
    references = {speaker.name: speaker.references(options.references) for speaker in surveyed}
    key = cache_key(base, references)
    state = describe(config, surveyed, assign_rows(shape, [speaker.name for speaker in surveyed]))
    cached = _read_cache(config)
    if cached is None or cached["key"] != key:
        encoder = load_encoder(base, shape)
        vectors = [mean_vector(encoder, paths) for paths in references.values()]
    else:
        vectors = list(known(config).vectors)
    if cached is None or cached != {"key": key, "state": state}:
        _write_cache(config, vectors, {"key": key, "state": state})


def known(config: Config) -> Known:
    """What `prepare` left for this run. Raises `UserError` if it did not run."""
    from safetensors.torch import load_file

    cached = _read_cache(config)
    if cached is None:
        raise UserError(f"{_cache_path(config)} is missing or damaged: it is written when training starts; start the training again")
    return Known(load_file(_cache_path(config))["speaker_vectors"], cached["state"])


def base_config(base: Path) -> dict[str, Any]:
    """Content of the base's config.json; raises `UserError` if it is no Qwen3-TTS Base model, the only kind with a speaker encoder."""
    config: dict[str, Any] = json.loads((base / "config.json").read_text(encoding="utf-8"))
    kind = config.get("tts_model_type")
    if config.get("model_type") != "qwen3_tts" or kind != "base":
        raise UserError(
            f"{base} is no Qwen3-TTS Base model (model_type {config.get('model_type')!r}, tts_model_type {kind!r}); only those have the "
            "speaker encoder that training needs. Use Qwen/Qwen3-TTS-12Hz-0.6B-Base or -1.7B-Base, or an export made with --format base"
        )
    return config


def cache_key(base: Path, references: dict[str, list[Path]]) -> str:
    """Digest of everything that the vectors depend on: the encoder's weights and, per speaker, the content of the reference clips."""
    total = hashlib.sha256()
    for name, tensor in sorted(encoder_tensors(base).items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.float().numpy().tobytes())
    for name, paths in references.items():
        total.update(json.dumps([name, [_digest_of_clip(path) for path in paths]]).encode())
    return total.hexdigest()


def _digest_of_clip(path: Path) -> str:
    try:
        return files.digest(path)
    except OSError as error:
        raise UserError(f"reference clip {path}: {error.strerror}; restore it or remove its rows") from None


def encoder_tensors(base: Path) -> dict[str, Tensor]:
    """The speaker encoder's weights, and nothing else of the base is read."""
    from safetensors import safe_open

    found: dict[str, Tensor] = {}
    for path in sorted(base.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {name.removeprefix(ENCODER): file.get_tensor(name) for name in file.keys() if name.startswith(ENCODER)}  # noqa: SIM118
    if not found:
        raise UserError(f"{base}: its weights hold no speaker encoder; use a Base model or an export made with --format base")
    return found


def load_encoder(base: Path, shape: dict[str, Any]) -> nn.Module:
    """The base's speaker encoder alone, fp32: log-mel [B, frames, 128] → [B, H]."""
    from data_prep.qwen import import_qwen_tts

    import_qwen_tts()
    from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSSpeakerEncoderConfig
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSSpeakerEncoder

    encoder: nn.Module = Qwen3TTSSpeakerEncoder(Qwen3TTSSpeakerEncoderConfig(**shape["speaker_encoder_config"])).float().eval()
    encoder.load_state_dict(encoder_tensors(base))
    return encoder


def mean_vector(encoder: nn.Module, references: list[Path]) -> Tensor:
    """[H] fp32: the mean over the clips. The mean is taken in fp32, where half precision would round the differences away."""
    import torch

    return torch.stack([speaker_vector(encoder, read_clip(path)) for path in references]).mean(0)


def speaker_vector(encoder: nn.Module, wave: np.ndarray) -> Tensor:
    """[H] fp32 of one clip: mono, 24 kHz, float32 in −1 … 1."""
    import torch
    from qwen_tts.core.models.modeling_qwen3_tts import mel_spectrogram

    with torch.inference_mode():
        batch = torch.from_numpy(wave)[None]
        mel = mel_spectrogram(batch, n_fft=1024, num_mels=128, sampling_rate=SAMPLE_RATE, hop_size=256, win_size=1024, fmin=0, fmax=12000)
        return encoder(mel.transpose(1, 2))[0].clone()


def read_clip(path: Path) -> np.ndarray:
    """A reference clip as the encoder wants it: mono, 24 kHz, float32. Raises `UserError` if it cannot be read or is too short."""
    from data_prep.audio import AudioError, read

    try:
        audio = read(path, SAMPLE_RATE)
    except (AudioError, OSError) as error:
        raise UserError(f"reference clip {path} is not usable ({error}); make the clips again with `python -m data_prep voice`") from None
    if audio.seconds < SHORTEST:
        raise UserError(f"reference clip {path} lasts {audio.seconds:.2f} s, a voice needs {SHORTEST} s; name a longer ref_audio")
    return audio.samples


def _cache_path(config: Config) -> Path:
    return config.run.dir / "cache" / "speakers.safetensors"


def _read_cache(config: Config) -> dict[str, Any] | None:
    """{"key", "state"} of the cached vectors, which stand in the same file so that one cannot be newer than the other."""
    from safetensors import SafetensorError, safe_open

    path = _cache_path(config)
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads(file.metadata()["overtone"])
    except (SafetensorError, KeyError, TypeError, ValueError):
        return None


def _write_cache(config: Config, vectors: list[Tensor], facts: dict[str, Any]) -> None:
    import torch
    from safetensors.torch import save

    data = save({"speaker_vectors": torch.stack(vectors).float().contiguous()}, metadata={"overtone": json.dumps(facts)})
    files.write_bytes(_cache_path(config), data)
