"""The similarity of Seed-TTS-eval: WavLM-large with an ECAPA-TDNN head, fine-tuned for speaker verification (`wavlm_large_finetune.pth`).

Networks: WavLM (https://arxiv.org/abs/2110.13900), ECAPA-TDNN (https://arxiv.org/abs/2005.07143); their form in the checkpoint is that of
https://github.com/microsoft/UniSpeech, downstreams/speaker_verification, whose WavLM has the names of s3prl. All hidden states of WavLM are
averaged with trained weights; the head takes them as features. WavLM is transformers' own, which computes the same under other names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from torch import Tensor, nn
from torch.nn import functional

from overtone.data_prep.audio.waveform import SPEECH_RATE
from overtone.data_prep.parallel.devices import choose_device
from overtone.data_prep.parallel.torch_settings import disable_tf32
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.model_security import load_pickled_weights

OPTION = "--protocol-similarity"
PUBLISHED = "wavlm_large_finetune.pth"
UPSTREAM = "feature_extract.model."
TRAINED_WITH = (
    "loss_calculator.",
    "feature_extract.model.mask_emb",
    "feature_extract.model.label_embs",
    "feature_extract.model.final_proj",
)
"""Beginnings of the names of weights that no embedding depends on."""
NAMES = (
    (r"^feature_extractor\.conv_layers\.(\d+)\.0\.", r"feature_extractor.conv_layers.\1.conv."),
    (r"^feature_extractor\.conv_layers\.(\d+)\.2\.1\.", r"feature_extractor.conv_layers.\1.layer_norm."),
    (r"^layer_norm\.", "feature_projection.layer_norm."),
    (r"^post_extract_proj\.", "feature_projection.projection."),
    (r"^encoder\.pos_conv\.0\.bias$", "encoder.pos_conv_embed.conv.bias"),
    (r"^encoder\.pos_conv\.0\.weight_g$", "encoder.pos_conv_embed.conv.parametrizations.weight.original0"),
    (r"^encoder\.pos_conv\.0\.weight_v$", "encoder.pos_conv_embed.conv.parametrizations.weight.original1"),
    (r"\.self_attn\.grep_a$", ".attention.gru_rel_pos_const"),
    (r"\.self_attn\.grep_linear\.", ".attention.gru_rel_pos_linear."),
    (r"\.self_attn\.relative_attention_bias\.", ".attention.rel_attn_embed."),
    (r"\.self_attn\.", ".attention."),
    (r"\.self_attn_layer_norm\.", ".layer_norm."),
    (r"\.fc1\.", ".feed_forward.intermediate_dense."),
    (r"\.fc2\.", ".feed_forward.output_dense."),
)
"""Part of a name in s3prl's WavLM → the part in transformers."""
STRIDES = (5, 2, 2, 2, 2, 2, 2)
LONGEST_DISTANCE = 800
"""Largest relative position of all published WavLM models; it is not in the weights."""
CHANNELS, POOLED, SCALE, BOTTLENECK = 512, 1536, 8, 128
FILTER_WIDTH, ROLLOFF = 6, 0.99
"""Zero crossings on each side, and cutoff relative to the Nyquist frequency, of torchaudio's `Resample`."""


@dataclass(frozen=True)
class SimilarityModel:
    """The checkpoint of the similarity network, and its digest."""

    path: Path
    digest: str

    def load(self) -> LoadedSimilarityModel:
        """Raises `UserError` for weights that are not those of this network."""
        network = build_network(read_checkpoint(self.path), self.path)
        return LoadedSimilarityModel(network.eval().to(choose_device(None)))


@dataclass(frozen=True)
class LoadedSimilarityModel:
    """The network, ready to run."""

    network: WavLMEcapa

    def compare(self, clip: Path, prompt: Path) -> float:
        """Cosine of the speaker vectors of a clip and its prompt. Raises `UserError` for a file that cannot be read."""
        with torch.inference_mode(), disable_tf32():
            one, other = (self.network(read_clip(path).to(self.network.feature_weight.device)) for path in (clip, prompt))
            return functional.cosine_similarity(one, other).item()


def find_similarity_model(path: Path) -> SimilarityModel:
    """Raises `UserError` if there is no such file."""
    if not path.is_file():
        raise UserError(
            f"{OPTION} {path}: no such file; Seed-TTS-eval's README links to {PUBLISHED}. Without the option, SIM is not measured"
        )
    return SimilarityModel(path, files.digest(path))


def read_clip(path: Path) -> Tensor:
    """The first channel of a clip at 16 kHz, as float32 [1, n]."""
    try:
        input_files.require_regular(path)
        wave, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, soundfile.LibsndfileError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore the clip") from error
    return resample(torch.from_numpy(np.ascontiguousarray(wave[:, 0])), rate, SPEECH_RATE)[None]


def resample(wave: Tensor, rate: int, target: int) -> Tensor:
    """`wave` [n] at `rate` Hz resampled to `target` Hz by a Hann-windowed sinc, [ceil(n · target / rate)].

    J. O. Smith, Digital Audio Resampling (https://ccrma.stanford.edu/~jos/resample/), with the parameters of torchaudio's `Resample`.
    """
    if rate == target:
        return wave
    common = math.gcd(rate, target)
    source, made = rate // common, target // common
    cutoff = min(source, made) * ROLLOFF
    width = math.ceil(FILTER_WIDTH * source / cutoff)
    places = torch.arange(-width, width + source, dtype=torch.float64) / source
    # In float32 like torchaudio's, whose filters would otherwise differ in the last digits.
    starts = torch.arange(0, -made, -1, dtype=torch.get_default_dtype())[:, None] / made
    distance = ((starts + places) * cutoff).clamp(-FILTER_WIDTH, FILTER_WIDTH)
    window = torch.cos(distance * math.pi / FILTER_WIDTH / 2) ** 2
    kernels = (torch.sinc(distance) * window * cutoff / source).float()
    padded = functional.pad(wave[None, None], (width, width + source))
    found = functional.conv1d(padded, kernels[:, None], stride=source)[0]
    return found.T.reshape(-1)[: math.ceil(len(wave) * made / source)]


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Name → weight, of a `.pth` file with a dictionary `model`, or of a safetensors file. Raises `UserError`."""
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            input_files.require_regular(path)
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{OPTION} {path}: not a safetensors file ({error}); download it again") from error
    found = load_pickled_weights(path).get("model")
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{OPTION} {path}: contains no dictionary `model` of weights; give {PUBLISHED}")
    return found


def build_network(weights: Mapping[str, Tensor], path: Path) -> WavLMEcapa:
    """The network with the given weights. Raises `UserError` for weights that are missing, unknown or of another shape."""
    used = {name: value for name, value in weights.items() if not name.startswith(TRAINED_WITH)}
    upstream = {translate_name(name.removeprefix(UPSTREAM)): value for name, value in used.items() if name.startswith(UPSTREAM)}
    head = {name: value for name, value in used.items() if not name.startswith(UPSTREAM)}
    try:
        network = WavLMEcapa(_build_wavlm(upstream), len(head["linear.weight"]))
        network.load_state_dict({**head, **{f"wavlm.{name}": value for name, value in upstream.items()}})
    except KeyError as error:
        raise UserError(f"{OPTION} {path}: lacks the weight {error}; give {PUBLISHED}") from None
    except (RuntimeError, ValueError, IndexError) as error:
        first = " ".join(str(error).split())[:300]
        raise UserError(f"{OPTION} {path}: not WavLM-large with an ECAPA-TDNN head ({first}); give {PUBLISHED}") from None
    return network


def translate_name(name: str) -> str:
    """The name of a weight of s3prl's WavLM in transformers."""
    for pattern, replacement in NAMES:
        name, replaced = re.subn(pattern, replacement, name)
        if replaced:
            return name
    return name


def _build_wavlm(weights: Mapping[str, Tensor]) -> Any:
    """A WavLM with the sizes of the weights, in the structure of WavLM-large: norms first, a norm after each convolution."""
    from transformers import WavLMConfig, WavLMModel

    kernels = [weights[f"feature_extractor.conv_layers.{at}.conv.weight"].shape for at in range(len(STRIDES))]
    buckets, heads = weights["encoder.layers.0.attention.rel_attn_embed.weight"].shape
    positions = weights["encoder.pos_conv_embed.conv.parametrizations.weight.original1"].shape
    return WavLMModel(
        WavLMConfig(
            hidden_size=positions[0],
            num_hidden_layers=len({name.split(".")[2] for name in weights if name.startswith("encoder.layers.")}),
            num_attention_heads=heads,
            intermediate_size=len(weights["encoder.layers.0.feed_forward.intermediate_dense.bias"]),
            feat_extract_norm="layer",
            do_stable_layer_norm=True,
            conv_dim=[shape[0] for shape in kernels],
            conv_kernel=[shape[2] for shape in kernels],
            conv_stride=STRIDES,
            conv_bias=False,
            num_conv_pos_embeddings=positions[2],
            num_conv_pos_embedding_groups=positions[0] // positions[1],
            num_buckets=buckets,
            max_bucket_distance=LONGEST_DISTANCE,
            layerdrop=0.0,
            mask_time_prob=0.0,
            mask_feature_prob=0.0,
        )
    )


class WavLMEcapa(nn.Module):
    """Waves at 16 kHz to speaker vectors. Attributes have the names of the checkpoint."""

    def __init__(self, wavlm: Any, dimensions: int) -> None:
        super().__init__()
        self.wavlm = wavlm
        self.feature_weight = nn.Parameter(torch.zeros(wavlm.config.num_hidden_layers + 1))
        self.layer1 = ConvReluNorm(wavlm.config.hidden_size, CHANNELS, kernel=5, padding=2)
        self.layer2, self.layer3, self.layer4 = (SqueezeExcitationBlock(dilation) for dilation in (2, 3, 4))
        self.conv = nn.Conv1d(3 * CHANNELS, POOLED, 1)
        self.pooling = AttentivePooling()
        self.bn = nn.BatchNorm1d(2 * POOLED)
        self.linear = nn.Linear(2 * POOLED, dimensions)

    def forward(self, wave: Tensor) -> Tensor:
        """Speaker vectors [1, dimensions] of `wave` [1, n]. Raises RuntimeError for one that is too short for the convolutions."""
        states = self.wavlm(functional.layer_norm(wave, wave.shape[1:]), output_hidden_states=True).hidden_states
        shares = self.feature_weight.softmax(dim=0)
        mixed = (shares[:, None, None, None] * torch.stack(states)).sum(dim=0)
        first = self.layer1(functional.instance_norm(mixed.transpose(1, 2) + 1e-6))
        second = self.layer2(first)
        third = self.layer3(second)
        fourth = self.layer4(third)
        joined = self.conv(torch.cat([second, third, fourth], dim=1)).relu()
        vectors: Tensor = self.linear(self.bn(self.pooling(joined)))
        return vectors


class ConvReluNorm(nn.Module):
    """Convolution, ReLU, batch norm, in this order; [B, channels, T]."""

    def __init__(self, channels: int, made: int, kernel: int = 1, padding: int = 0) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv1d(channels, made, kernel, padding=padding), nn.BatchNorm1d(made)

    def forward(self, features: Tensor) -> Tensor:
        found: Tensor = self.bn(self.conv(features).relu())
        return found


class Res2Convolution(nn.Module):
    """Dilated convolutions over eighths of the channels, each of which also gets the one before it; the last eighth is passed on."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        width = CHANNELS // SCALE
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation) for _ in range(SCALE - 1))
        self.bns = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(SCALE - 1))

    def forward(self, features: Tensor) -> Tensor:
        *parts, last = features.chunk(SCALE, dim=1)
        made: list[Tensor] = []
        for part, conv, norm in zip(parts, self.convs, self.bns, strict=True):
            made.append(norm(conv(part + made[-1] if made else part).relu()))
        return torch.cat([*made, last], dim=1)


class SqueezeExcitation(nn.Module):
    """Scales each channel by a gate that is computed from the means of all channels over time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(CHANNELS, BOTTLENECK), nn.Linear(BOTTLENECK, CHANNELS)

    def forward(self, features: Tensor) -> Tensor:
        gates: Tensor = self.linear2(self.linear1(features.mean(dim=2)).relu()).sigmoid()
        return features * gates[:, :, None]


class SqueezeExcitationBlock(nn.Module):
    """One residual block of ECAPA-TDNN, [B, channels, T]; its parts have the names of the checkpoint."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.Conv1dReluBn1, self.Res2Conv1dReluBn = ConvReluNorm(CHANNELS, CHANNELS), Res2Convolution(dilation)
        self.Conv1dReluBn2, self.SE_Connect = ConvReluNorm(CHANNELS, CHANNELS), SqueezeExcitation()

    def forward(self, features: Tensor) -> Tensor:
        found: Tensor = self.SE_Connect(self.Conv1dReluBn2(self.Res2Conv1dReluBn(self.Conv1dReluBn1(features))))
        return features + found


class AttentivePooling(nn.Module):
    """Mean and standard deviation over time, [B, 2 · channels], with weights of each channel's own from an attention over frames."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Conv1d(POOLED, BOTTLENECK, 1), nn.Conv1d(BOTTLENECK, POOLED, 1)

    def forward(self, features: Tensor) -> Tensor:
        weights = self.linear2(self.linear1(features).tanh()).softmax(dim=2)
        mean = (weights * features).sum(dim=2)
        variance = (weights * features.square()).sum(dim=2) - mean.square()
        return torch.cat([mean, variance.clamp(min=1e-9).sqrt()], dim=1)
