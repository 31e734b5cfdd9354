"""A speaker encoder without training: a random network whose last layer is fitted in closed form.

Even a random ECAPA-TDNN pools a clip into statistics that contain the voice, among other things. Linear discriminants of these statistics
keep the differences between speakers and drop those between sentences. To have enough voices for this, the clips of the few real ones are
also resampled, which changes pitch and vocal tract length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import soxr
import torch
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor, nn

from overtone.data_prep.audio.waveform import MASTER_RATE, Samples
from overtone.data_prep.audio_codecs import qwen3_tts_speaker_encoder

SIZES = (0.8, 0.9, 1.0, 1.12, 1.25)
"""Sizes of the vocal tract to which each voice is resampled: at 0.8, it is a quarter slower and lower."""
SHRINKAGE = 0.1
"""Shrinkage of the within-voice covariance towards a multiple of the identity, because there are hardly more clips than statistics."""
LENGTH = 4.0
"""Approximate length of a vector: that of the embeddings that it is used with."""


def resample_voice(samples: Samples, size: float) -> Samples:
    """The audio of a speaker with another size of the vocal tract; speed and pitch change together."""
    return samples if size == 1.0 else soxr.resample(samples, MASTER_RATE * size, MASTER_RATE).astype(np.float32)


def fit_last_layer(encoder: Any, clips: Sequence[tuple[str, Samples]], seed: int) -> dict[str, Tensor]:
    """Weight and bias of the encoder's last layer, `fc`, from (speaker, samples [n] at 24 kHz) of several speakers."""
    pooled, speakers = [], []
    for speaker, samples in clips:
        for size in SIZES:
            pooled.append(pool_statistics(encoder, resample_voice(samples, size)))
            speakers.append(f"{speaker} {size}")
    found = LinearDiscriminantAnalysis(solver="eigen", shrinkage=SHRINKAGE).fit(np.stack(pooled), speakers)
    kept = len(set(speakers)) - 1
    axes = found.scalings_[:, :kept]
    seen = (np.stack(pooled) - np.mean(pooled, axis=0)) @ axes
    turned = np.linalg.qr(np.random.default_rng(seed).standard_normal((encoder.fc.out_channels, kept)))[0].T
    weight = axes @ turned * (LENGTH / np.sqrt(np.square(seen).sum(1).mean()))
    bias = -np.mean(pooled, axis=0) @ weight
    return {"fc.weight": torch.from_numpy(weight.T[:, :, None]).float().contiguous(), "fc.bias": torch.from_numpy(bias).float()}


def pool_statistics(encoder: Any, samples: Samples) -> NDArray[np.float64]:
    """Input of the last layer for one clip."""
    inputs_of_layer: list[Tensor] = []
    handle = encoder.fc.register_forward_pre_hook(lambda _module, inputs: inputs_of_layer.append(inputs[0]))
    try:
        qwen3_tts_speaker_encoder.embed_clip(encoder, samples)
    finally:
        handle.remove()
    return inputs_of_layer[0].flatten().double().numpy()


def measure_cosines(encoder: nn.Module, clips: Sequence[tuple[str, Samples]]) -> dict[str, float]:
    """Mean cosine between each clip and the mean of its speaker's other clips, and between it and the nearest other speaker's mean."""
    vectors = [(speaker, qwen3_tts_speaker_encoder.embed_clip(encoder, samples)) for speaker, samples in clips]
    same, other = [], []
    for index, (speaker, vector) in enumerate(vectors):
        rest = [pair for at, pair in enumerate(vectors) if at != index]
        means = {name: np.mean([v for who, v in rest if who == name], axis=0) for name in {who for who, _ in rest}}
        same.append(_cosine(vector, means[speaker]))
        other.append(max(_cosine(vector, mean) for name, mean in means.items() if name != speaker))
    return {"same": round(float(np.mean(same)), 3), "nearest_other": round(float(np.mean(other)), 3)}


def _cosine(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
