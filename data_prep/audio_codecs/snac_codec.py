"""SNAC (Multi-Scale Neural Audio Codec, https://huggingface.co/papers/2410.14411), the codec of Orpheus.

Its levels run at different rates, so a frame is one code of the slowest level and the codes of the others for the same time: 1 + 2 + 4 = 7
codes and 2048 samples at 24 kHz for snac_24khz. A frame's codes are stored from the coarsest level to the finest, in order of time within
each: `[a, b0, b1, c0, c1, c2, c3]`. `arrange_codes` and `split_levels` convert between this and the package's one array per level.

The package's own `from_pretrained` is never called, since it unpickles weights without restrictions. Clips are padded with zeros to whole
frames and encoded one by one: the convolutions are not causal, so padding a clip to the length of others would change its codes.

Decoding is deterministic. The decoder adds noise, scaled by the signal, after each upsampling. The package draws it anew for every call;
here it is the same standard normal noise, but a fixed function of the layer and of the frame's number
(`data_prep/audio_codecs/snac_noise.py`). So the same codes give the same audio in every batch, and in a stream that decodes windows of
frames, if `first_frame` names the first frame of the window.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from overtone.data_prep.audio.waveform import Samples
from overtone.data_prep.audio_codecs.interface import CodeFormat, Codes, check_codes
from overtone.data_prep.parallel.torch_settings import disable_tf32
from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.storage.model_security import CONFIG, cleaned, load_pickled_weights, report, shorten
from overtone.finetune.storage.safetensors_opening import open_weights
from overtone.finetune.storage.strict_json import one_line

if TYPE_CHECKING:
    import torch
    from pydantic import JsonValue
    from snac import SNAC
    from torch import Tensor, nn

RECIPE = "codec_lm"
"""The recipe that trains on these codes."""
RELEASED_MODEL = "hubertsiuzdak/snac_24khz"
CODEC_FOLDER = "speech_codec"
"""The subfolder of an exported language model with its codec."""
WEIGHTS, PICKLED_WEIGHTS = "model.safetensors", "pytorch_model.bin"
"""Names of the weights files. The released models have only the second; the first is preferred."""
NUMBERS = ("sampling_rate", "encoder_dim", "decoder_dim", "codebook_size", "codebook_dim")
LISTS = ("encoder_rates", "decoder_rates", "vq_strides")
FLAGS = ("noise", "depthwise")
REQUIRED_KEYS = frozenset({*NUMBERS, *LISTS})
"""SNAC's config.json has no `model_type`; these keys identify it."""
OPTIONAL_KEYS = frozenset({*FLAGS, "latent_dim", "attn_window_size"})
ARRAYS_AT_ONCE = 4
"""Approximate number of arrays of the encoder's widest layer that exist at the same time. It has `encoder_dim` channels at the rate of the
samples."""
INSTALL = "pip install 'overtone[snac]'"


@dataclass(frozen=True)
class SnacConfig:
    """A SNAC config.json, checked."""

    sampling_rate: int
    encoder_dim: int
    decoder_dim: int
    codebook_size: int
    codebook_dim: int
    encoder_rates: tuple[int, ...]
    decoder_rates: tuple[int, ...]
    vq_strides: tuple[int, ...]
    """Steps of the encoder that one code of each level covers, from the coarsest level to the finest."""
    noise: bool
    depthwise: bool

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.encoder_rates) * self.vq_strides[0]

    @property
    def codes_per_level(self) -> tuple[int, ...]:
        """Codes of each level in one frame, from the coarsest level to the finest: 1, 2, 4 for snac_24khz."""
        return tuple(self.vq_strides[0] // stride for stride in self.vq_strides)

    @property
    def code_format(self) -> CodeFormat:
        return CodeFormat(self.sampling_rate, self.samples_per_frame, sum(self.codes_per_level), self.codebook_size)


@dataclass(frozen=True)
class SnacCodec:
    """Implements `Codec` of `data_prep/audio_codecs/interface.py`."""

    folder: Path
    model: Path
    config: SnacConfig
    recipe: ClassVar[str] = RECIPE

    @property
    def sample_rate(self) -> int:
        return self.config.sampling_rate

    @property
    def samples_per_frame(self) -> int:
        return self.config.samples_per_frame

    @property
    def frame_rate(self) -> float:
        return self.sample_rate / self.samples_per_frame

    @property
    def codebooks(self) -> int:
        return sum(self.config.codes_per_level)

    @property
    def codebook_size(self) -> int:
        return self.config.codebook_size

    def digest(self) -> str:
        """Return the SHA-256 over the config and the values of the weights, in whatever kind of file they are."""
        total = hashlib.sha256(json.dumps(asdict(self.config), sort_keys=True).encode())
        for name, tensor in sorted(read_weights(self.folder).items()):
            total.update(f"{name} {tuple(tensor.shape)}\n".encode())
            total.update(tensor.float().numpy().tobytes())
        return total.hexdigest()

    def estimate_worker_bytes(self, seconds: float) -> int:
        fp32 = 4
        weights = sum((self.folder / name).stat().st_size for name in (WEIGHTS, PICKLED_WEIGHTS) if (self.folder / name).is_file())
        return weights + round(seconds * self.sample_rate * self.config.encoder_dim * fp32 * ARRAYS_AT_ONCE)

    def load(self, device: str) -> LoadedSnacCodec:
        return LoadedSnacCodec(load_snac(self, device), self.config)


@dataclass(frozen=True)
class LoadedSnacCodec:
    """Implements `LoadedCodec` of `data_prep/audio_codecs/interface.py`."""

    model: SNAC
    """As `load_snac` returns it."""
    config: SnacConfig

    def encode(self, clips: Sequence[Samples]) -> list[Codes]:
        with disable_tf32():
            return [self._encode_clip(clip) for clip in clips]

    def _encode_clip(self, clip: Samples) -> Codes:
        import torch

        wanted = self.config.code_format
        padded = np.pad(clip, (0, -len(clip) % wanted.samples_per_frame))
        with torch.inference_mode():
            levels = self.model.encode(torch.from_numpy(padded).to(_device_of(self.model))[None, None])
            codes = arrange_codes(levels, self.config.codes_per_level)[0]
        return check_codes(codes.cpu().numpy(), wanted.count_frames(len(clip)), wanted)

    def decode(self, codes: Codes) -> Samples:
        import torch

        checked = check_codes(codes, len(codes), self.config.code_format).astype(np.int64)
        audio: Samples = self.decode_frames(torch.from_numpy(checked)[None])[0].cpu().numpy().copy()
        return audio

    def decode_frames(self, codes: Tensor, first_frame: int = 0) -> Tensor:
        """Return the audio [B, frames * samples_per_frame] of codes [B, frames, codebooks], which must be in range.

        `first_frame`: number of the first given frame in its clip, for windows of a stream. A window's audio equals that of the whole clip
        except near its ends, where the convolutions reach into frames that were not given.
        """
        import torch

        from overtone.data_prep.audio_codecs.snac_noise import number_frames

        with torch.inference_mode(), disable_tf32(), number_frames(first_frame, codes.shape[1]):
            levels = split_levels(codes.to(_device_of(self.model)), self.config.codes_per_level)
            audio: Tensor = self.model.decode(levels)[:, 0]
        return audio


def open_snac_codec(option: str, model: str, commit: str | None) -> SnacCodec:
    """Open SNAC in a folder of its own, or the name of one on the model hub (of one `commit`; default: the newest).

    Raises `UserError` in the name of the command-line `option`.
    """
    folder = resolve_model(option, model, [CONFIG, WEIGHTS, PICKLED_WEIGHTS], commit)
    return SnacCodec(folder, folder, _read_config_for(option, model, folder))


def open_exported_snac_codec(option: str, model: str, commit: str | None) -> SnacCodec:
    """Open SNAC in the subfolder of an exported language model, of which only that subfolder is downloaded; given as for
    `open_snac_codec`."""
    folder = resolve_model(option, model, [f"{CODEC_FOLDER}/{CONFIG}", f"{CODEC_FOLDER}/{WEIGHTS}"], commit)
    return SnacCodec(folder / CODEC_FOLDER, folder, _read_config_for(option, model, folder / CODEC_FOLDER))


def _read_config_for(option: str, model: str, folder: Path) -> SnacConfig:
    try:
        return read_config(folder)
    except UserError as error:
        raise UserError(f"{option} {model}: {error}") from error


def read_config(folder: Path) -> SnacConfig:
    """Return the config of a SNAC folder. Raises `UserError` for a key that is unknown or has a value that SNAC cannot have."""
    path = folder / CONFIG
    config, dropped = cleaned(path)
    report(path, dropped)
    unknown, missing = sorted(config.keys() - REQUIRED_KEYS - OPTIONAL_KEYS), sorted(REQUIRED_KEYS - config.keys())
    if unknown or missing:
        named = f"unknown keys: {', '.join(map(shorten, unknown))}" if unknown else f"missing keys: {', '.join(missing)}"
        raise UserError(f"{path}: not a config of SNAC ({named}); download the model again")
    for keys, is_valid in ((NUMBERS, _is_positive), (LISTS, _are_positive), (FLAGS, _is_flag)):
        for key in keys:
            if not is_valid(config.get(key, True)):
                raise UserError(
                    f"{path}: {key}: {shorten(repr(config.get(key)))} is not a value that SNAC can have; download the model again"
                )
    values = {key: config.get(key, True) for key in (*NUMBERS, *FLAGS)}
    found = SnacConfig(**values | {key: tuple(config[key]) for key in LISTS})
    _check_unsupported(path, config, found)
    if math.prod(found.encoder_rates) != math.prod(found.decoder_rates):
        raise UserError(f"{path}: encoder_rates {found.encoder_rates} and decoder_rates {found.decoder_rates} have different products")
    if any(found.vq_strides[0] % stride for stride in found.vq_strides) or list(found.vq_strides) != sorted(found.vq_strides, reverse=True):
        raise UserError(f"{path}: vq_strides {found.vq_strides}: each must divide the first, and none may be larger than the one before it")
    return found


def _check_unsupported(path: Path, config: dict[str, JsonValue], found: SnacConfig) -> None:
    if config.get("attn_window_size") is not None:
        raise UserError(
            f"{path}: attn_window_size {shorten(repr(config['attn_window_size']))}: SNAC with attention, whose windows span several "
            f"frames, is not supported; give one without it, such as {RELEASED_MODEL}"
        )
    if config.get("latent_dim") not in (None, found.encoder_dim * 2 ** len(found.encoder_rates)):
        raise UserError(f"{path}: latent_dim {shorten(repr(config['latent_dim']))} does not fit the encoder; download the model again")


def _is_positive(value: JsonValue) -> bool:
    return type(value) is int and value > 0


def _are_positive(value: JsonValue) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(_is_positive, value))


def _is_flag(value: JsonValue) -> bool:
    return isinstance(value, bool)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights by name, on the CPU. Raises `UserError` if they are missing, damaged, or anything but tensors."""
    import torch

    if (path := folder / WEIGHTS).is_file():
        with open_weights(path) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if not (path := folder / PICKLED_WEIGHTS).is_file():
        raise UserError(f"{folder} contains neither {WEIGHTS} nor {PICKLED_WEIGHTS}; the download is incomplete, fetch the model again")
    found = load_pickled_weights(path)
    other = next((name for name, value in found.items() if not (isinstance(name, str) and isinstance(value, torch.Tensor))), None)
    if other is not None:
        raise UserError(f"{path}: {shorten(repr(other))} is not a tensor; fetch the model again")
    return found


def import_snac() -> type[SNAC]:
    """Import the package's class `SNAC`. Raises `UserError` if the package is missing."""
    try:
        from snac import SNAC
    except ModuleNotFoundError as error:
        raise UserError(f"the Python package {error.name!r} is missing; install the snac extra: {INSTALL}") from error
    return SNAC


def load_snac(codec: SnacCodec, device: str) -> SNAC:
    """Load the `snac.SNAC` of a codec in fp32, with deterministic noise. Raises `UserError` if weights and config.json do not match, or the
    package is missing."""
    make_model = import_snac()
    from overtone.data_prep.audio_codecs.snac_noise import fix_noise  # imports the package
    from overtone.finetune.storage.construction_limits import limit_construction

    weights = read_weights(codec.folder)
    try:
        with limit_construction(codec.folder):
            model = make_model(**asdict(codec.config), attn_window_size=None)
        model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{codec.folder}: the weights and {CONFIG} do not fit ({one_line(error)}); fetch the model again") from error
    fix_noise(model)
    return model.float().eval().to(device)


def _device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def arrange_codes(levels: Sequence[Tensor], codes_per_level: Sequence[int]) -> Tensor:
    """Return the codes [B, frames, codebooks] of levels [B, frames * n] with n codes a frame: each level's codes of a frame side by
    side."""
    import torch

    return torch.cat([level.unflatten(1, (-1, count)) for level, count in zip(levels, codes_per_level, strict=True)], dim=2)


def split_levels(codes: Tensor, codes_per_level: Sequence[int]) -> list[Tensor]:
    """Return the levels [B, frames * n] of codes [B, frames, codebooks]: the inverse of `arrange_codes`."""
    return [level.flatten(1).contiguous() for level in codes.split(list(codes_per_level), dim=2)]
