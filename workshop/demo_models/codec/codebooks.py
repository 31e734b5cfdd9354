"""Codebooks, made before any network is trained: principal axes of the frames' features, then k-means on the residuals, codebook by
codebook.

The encoder is then trained to output the same coordinates, so that its quantizer chooses the same entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import torch as safetensors_torch
from sklearn.cluster import KMeans
from torch import Tensor

from overtone.finetune.storage import files

ENTRIES, WIDTH = 256, 64
"""Entries of each codebook, and their length."""
ACOUSTIC = 15
SEMANTIC_AXES = 12
"""Axes in the semantic codebook: the coarse sound of a frame."""
MAX_ITERATIONS = 20
"""Maximum iterations of k-means."""


@dataclass(frozen=True)
class Codebooks:
    """Codebooks that turn features into codes. All values are exact in fp16."""

    mean: Tensor
    """[features]."""
    axes: Tensor
    """[WIDTH, features], orthonormal up to rounding."""
    semantic: Tensor
    """[ENTRIES, WIDTH], zero after the leading axes."""
    acoustic: Tensor
    """[15, ENTRIES, WIDTH], each fitted to the residuals of the ones before it."""
    leading: int = SEMANTIC_AXES

    def list_tables(self) -> list[Tensor]:
        """All 16 codebooks in the order of the codes."""
        return [self.semantic, *self.acoustic]

    def project(self, vectors: Tensor) -> Tensor:
        """[frames, features] → coordinates [frames, WIDTH]."""
        return (vectors - self.mean) @ self.axes.T

    def restore(self, coordinates: Tensor) -> Tensor:
        """Coordinates […, WIDTH] → the features […, features] that they hold."""
        return coordinates @ self.axes + self.mean

    def encode(self, coordinates: Tensor) -> Tensor:
        """Coordinates [frames, WIDTH] → codes [frames, 16] int64: the nearest entries."""
        coarse = coordinates.clone()
        coarse[:, self.leading :] = 0
        found, residual = [_find_nearest(coarse, self.semantic)], coordinates
        for book in self.acoustic:
            found.append(_find_nearest(residual, book))
            residual = residual - book[found[-1]]
        return torch.stack(found, dim=1)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes […, 16] → […, WIDTH]: the sum of the acoustic entries."""
        return torch.stack([book[codes[..., 1 + index]] for index, book in enumerate(self.acoustic)]).sum(0)


def _find_nearest(points: Tensor, book: Tensor) -> Tensor:
    return torch.cdist(points[None], book[None])[0].argmin(1)


def fit_codebooks(vectors: Tensor, seed: int) -> Codebooks:
    """From the features of all frames, [frames, features]; at least ENTRIES frames."""
    mean = vectors.mean(0).half().float()
    centred = vectors - mean
    _, axes = torch.linalg.eigh((centred.T @ centred).double())
    axes = axes.flip(1).T[:WIDTH].half().float()
    coordinates = centred @ axes.T
    coarse = coordinates.clone()
    coarse[:, SEMANTIC_AXES:] = 0
    acoustic, residual = [], coordinates
    for index in range(ACOUSTIC):
        acoustic.append(run_k_means(residual, seed + 1 + index))
        residual = residual - acoustic[-1][_find_nearest(residual, acoustic[-1])]
    return Codebooks(mean, axes, run_k_means(coarse, seed), torch.stack(acoustic))


def run_k_means(points: Tensor, seed: int) -> Tensor:
    """Cluster means [ENTRIES, WIDTH] of points [n, WIDTH]."""
    found = KMeans(ENTRIES, init="random", n_init=1, max_iter=MAX_ITERATIONS, random_state=seed).fit(points.numpy())
    return torch.from_numpy(found.cluster_centers_).half().float()


def save(books: Codebooks, path: Path) -> None:
    tensors = {name: getattr(books, name).contiguous() for name in ("mean", "axes", "semantic", "acoustic")}
    files.write_bytes(path, safetensors_torch.save(tensors))


def load(path: Path) -> Codebooks:
    tensors = safetensors_torch.load_file(path)
    return Codebooks(tensors["mean"], tensors["axes"], tensors["semantic"], tensors["acoustic"])
