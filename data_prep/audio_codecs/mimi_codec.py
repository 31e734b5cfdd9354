"""Mimi, the codec of CSM: found inside a CSM model, whose language model is not read, or in a folder of its own.

One frame is 1920 samples at 24 kHz in the released models, and has as many codes as CSM uses of Mimi's codebooks (32). Clips are encoded
one by one, so the codes of a clip cannot depend on others, and are padded with zeros to whole frames first, as the code that CSM was
trained with does (`_encode_to_unquantized_latent` in moshi/models/compression.py of kyutai-labs/moshi). transformers pads inside each
convolution instead, so its codes of a partial last frame differ; all other frames are equal, since Mimi is causal.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from overtone.data_prep.audio.waveform import Samples
from overtone.data_prep.audio_codecs.interface import CodeFormat, Codes, check_codes
from overtone.data_prep.audio_codecs.partial_weights import read_partial_weights
from overtone.data_prep.parallel.torch_settings import disable_tf32
from overtone.finetune.errors import UserError
from overtone.finetune.storage.hub_download import commit_of
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.storage.model_security import CONFIG, Kind, check_config, checked_index
from overtone.finetune.storage.safetensors_opening import open_weights
from overtone.finetune.storage.strict_json import one_line

if TYPE_CHECKING:
    from pydantic import JsonValue
    from torch import Tensor
    from transformers import MimiConfig, MimiModel

RECIPE = "csm"
"""The recipe that trains on these codes."""
RELEASED_MODEL = "sesame/csm-1b"
PREFIX = "codec_model."
"""Prefix of the names of Mimi's weights in a CSM model."""


def _is_part(_: str, inner: str) -> bool:
    return inner in ("mimi", "csm_depth_decoder_model")


MIMI = Kind("a Mimi codec", {"mimi"})
CSM = Kind("a CSM model", {"csm"}, _is_part)
"""The folders that are accepted as models with this codec."""
INDEXES = "*.safetensors.index.json"
"""The released CSM-1B has two sets of weights: `model.safetensors`, with other names and without Mimi, and the shards of
`transformers.safetensors.index.json`, which its config names."""
SHAPING_KEYS = (
    *("sampling_rate", "frame_rate", "audio_channels", "hidden_size", "num_filters", "num_residual_layers", "upsampling_ratios"),
    *("kernel_size", "last_kernel_size", "residual_kernel_size", "dilation_growth_rate", "use_causal_conv", "pad_mode", "compress"),
    *("trim_right_ratio", "codebook_size", "codebook_dim", "num_quantizers", "use_conv_shortcut", "vector_quantization_hidden_dimension"),
    *("num_semantic_quantizers", "upsample_groups", "num_hidden_layers", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "hidden_act", "norm_eps", "sliding_window", "attention_bias"),
)
"""Settings of `MimiConfig` that the codes depend on, besides the base of the rotary embedding. The others, such as the version of
transformers that wrote the file, are not part of the digest."""
ARRAYS_AT_ONCE = 4
"""Approximate number of arrays of the encoder's widest layer that exist at the same time. It has `num_filters` channels at the rate of the
samples."""


@dataclass(frozen=True)
class MimiCodec:
    """Implements `Codec` of `data_prep/audio_codecs/interface.py`."""

    model: Path
    prefix: str
    """Prefix of the names of its weights: `codec_model.` in a CSM model, empty in a folder of its own."""
    sample_rate: int
    samples_per_frame: int
    codebooks: int
    codebook_size: int
    recipe: ClassVar[str] = RECIPE

    @property
    def folder(self) -> Path:
        return self.model

    @property
    def frame_rate(self) -> float:
        return self.sample_rate / self.samples_per_frame

    @property
    def code_format(self) -> CodeFormat:
        return CodeFormat(self.sample_rate, self.samples_per_frame, self.codebooks, self.codebook_size)

    def read_config(self) -> MimiConfig:
        """Return the codec's config, after checking the config.json of the model that contains it. Raises `UserError`."""
        config = check_config(self.model, CSM if self.prefix else MIMI)
        return _parse_config(self.model / CONFIG, config["codec_config"] if self.prefix else config)

    def digest(self) -> str:
        """Return the SHA-256 over the settings and the weights, by their values in fp32: an export with the same codec produces the same
        codes."""
        config = self.read_config()
        # The base of the rotary embedding, which transformers 5 keeps in `rope_parameters`.
        rotary = getattr(config, "rope_parameters", None) or {}
        theta = float(rotary.get("rope_theta", getattr(config, "rope_theta", 10_000.0)))
        settings = {key: getattr(config, key) for key in SHAPING_KEYS} | {"rope_theta": theta}
        total = hashlib.sha256(json.dumps([settings, self.codebooks], sort_keys=True).encode())
        for name, tensor in sorted(read_codec_weights(self.model, self.prefix).items()):
            total.update(f"{name} {tuple(tensor.shape)}\n".encode())
            total.update(tensor.float().numpy().tobytes())
        return total.hexdigest()

    def estimate_worker_bytes(self, seconds: float) -> int:
        fp32 = 4
        weights = fp32 * _count_codec_weights(self.model, self.prefix)
        return weights + round(seconds * self.sample_rate * self.read_config().num_filters * fp32 * ARRAYS_AT_ONCE)

    def load(self, device: str) -> LoadedMimiCodec:
        return LoadedMimiCodec(load_mimi(self, device), self.code_format)


@dataclass(frozen=True)
class LoadedMimiCodec:
    """Implements `LoadedCodec` of `data_prep/audio_codecs/interface.py`."""

    model: MimiModel
    """The model in fp32, so that the codes do not depend on the type of the model's weights or on the device's default precision."""
    code_format: CodeFormat

    def encode(self, clips: Sequence[Samples]) -> list[Codes]:
        with disable_tf32():
            return [self._encode_clip(clip) for clip in clips]

    def _encode_clip(self, clip: Samples) -> Codes:
        import torch

        padded = np.pad(clip, (0, -len(clip) % self.code_format.samples_per_frame))
        with torch.inference_mode():
            batch = torch.from_numpy(padded).to(self.model.device)[None, None]
            codes = self.model.encode(batch, num_quantizers=self.code_format.codebooks, return_dict=True).audio_codes[0].T
        return check_codes(codes.cpu().numpy(), self.code_format.count_frames(len(clip)), self.code_format)

    def decode(self, codes: Codes) -> Samples:
        import torch

        checked = check_codes(codes, len(codes), self.code_format).astype(np.int64)
        with torch.inference_mode(), disable_tf32():
            batch = torch.from_numpy(checked).T[None].to(self.model.device)
            audio: Samples = self.model.decode(batch, return_dict=True).audio_values[0, 0].cpu().numpy().copy()
        return audio


def open_csm_codec(option: str, model: str, commit: str | None) -> MimiCodec:
    """Open the codec of a CSM model: a local folder, or a name on the model hub (of one `commit`; default: the newest), of which only the
    weights files that contain Mimi are downloaded. Raises `UserError` in the name of the command-line `option`."""
    folder = resolve_model(option, model, ["*.json"], commit)
    try:
        codec = _read_csm_codec(folder)
        wanted = _find_indexed_files(folder, PREFIX) or ["*.safetensors"]
    except UserError as error:
        raise UserError(f"{option} {model}: {error}") from error
    return replace(codec, model=resolve_model(option, model, ["*.json", *wanted], commit_of(folder)))


def open_mimi_codec(option: str, model: str, commit: str | None) -> MimiCodec:
    """Open Mimi in a folder of its own, such as kyutai/mimi, with all its codebooks; given as for `open_csm_codec`."""
    folder = resolve_model(option, model, [CONFIG, "*.safetensors"], commit)
    try:
        config = _parse_config(folder / CONFIG, check_config(folder, MIMI))
        return _make_codec(folder, "", config, config.num_quantizers)
    except UserError as error:
        raise UserError(f"{option} {model}: {error}") from error


def _read_csm_codec(folder: Path) -> MimiCodec:
    config = check_config(folder, CSM)
    inner = config.get("codec_config")
    if not isinstance(inner, dict) or inner.get("model_type") != "mimi":
        raise UserError(f"{folder / CONFIG}: no codec_config of model_type mimi; give a CSM model of transformers")
    return _make_codec(folder, PREFIX, _parse_config(folder / CONFIG, inner), config.get("num_codebooks"))


def _make_codec(folder: Path, prefix: str, config: MimiConfig, codebooks: JsonValue) -> MimiCodec:
    path = folder / CONFIG
    if type(codebooks) is not int or not 0 < codebooks <= config.num_quantizers:
        raise UserError(f"{path}: num_codebooks {codebooks!r}; expected 1 to {config.num_quantizers}, the codebooks of its codec")
    samples_per_frame = config.sampling_rate / config.frame_rate
    if samples_per_frame % math.prod(config.upsampling_ratios):
        raise UserError(f"{path}: sampling_rate / frame_rate = {samples_per_frame:g} is not a multiple of the product of upsampling_ratios")
    return MimiCodec(
        model=folder,
        prefix=prefix,
        sample_rate=config.sampling_rate,
        samples_per_frame=int(samples_per_frame),
        codebooks=codebooks,
        codebook_size=config.codebook_size,
    )


def _parse_config(path: Path, config: dict[str, JsonValue]) -> MimiConfig:
    from transformers import MimiConfig

    try:
        return MimiConfig(**{key: value for key, value in config.items() if key != "model_type"})
    except Exception as error:  # the versions of transformers check different things and raise different types
        raise UserError(f"{path}: not a config of Mimi ({type(error).__name__}: {one_line(error)}); download the model again") from error


def _find_indexed_files(folder: Path, prefix: str) -> list[str]:
    """Return names of the weights files that contain tensors with the prefix, by the first index that lists any; empty if none does."""
    for index in sorted(folder.glob(INDEXES)):
        found = {file for tensor, file in checked_index(index).items() if tensor.startswith(prefix)}
        if found:
            return sorted(found)
    return []


def _find_weights(folder: Path, prefix: str) -> list[Path]:
    """Return the weights files that may contain the codec. Raises `UserError` if one is missing."""
    named = _find_indexed_files(folder, prefix)
    found = [folder / name for name in named] or sorted(folder.glob("*.safetensors"))
    missing = next((path for path in found if not path.is_file()), None)
    if missing or not found:
        raise UserError(f"{missing or folder}: no such weights (*.safetensors); the download is incomplete, fetch the model again")
    return found


def read_codec_weights(folder: Path, prefix: str) -> dict[str, Tensor]:
    """Return the codec's weights by their names in it; no other weights are read. Raises `UserError` if there are none or they are
    damaged."""
    found = read_partial_weights(_find_weights(folder, prefix), prefix)
    if not found:
        raise UserError(f"{folder}: its weights contain no codec ({prefix}*); fetch the model again")
    return found


def _count_codec_weights(folder: Path, prefix: str) -> int:
    """Count the numbers in the codec's weights, by the headers of the files. Raises `UserError` for a damaged file."""
    total = 0
    for path in _find_weights(folder, prefix):
        with open_weights(path) as file:
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys() if name.startswith(prefix))  # noqa: SIM118
    return total


def load_mimi(codec: MimiCodec, device: str) -> MimiModel:
    """Load the codec alone, in fp32. Raises `UserError` if weights and config.json do not match.

    transformers 5 has other names for Mimi's modules than the files; `from_pretrained` knows both, `load_state_dict` does not.
    """
    import torch
    from transformers import MimiModel

    from overtone.finetune.storage.construction_limits import limit_construction

    config, weights = codec.read_config(), read_codec_weights(codec.model, codec.prefix)
    misfit = f"{codec.model}: the codec's weights and {CONFIG} do not fit"
    try:
        with limit_construction(codec.model):
            model, found = MimiModel.from_pretrained(
                None, config=config, state_dict=weights, trust_remote_code=False, dtype=torch.float32, output_loading_info=True
            )
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{misfit} ({one_line(error)}); fetch the model again") from error
    for fault in ("missing", "unexpected"):
        if names := sorted(found[f"{fault}_keys"]):
            shown = ", ".join([*names[:3], *["…"] * (len(names) > 3)])
            raise UserError(f"{misfit} ({fault}: {shown}); fetch the model again")
    loaded: MimiModel = model.eval().to(device)
    return loaded
