"""Codebooks before any network: principal axes of the frames' features, then k-means on what is left, book by book.

The encoder is later taught to put the same coordinates out, and its quantiser then chooses the same entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.storage import files

if TYPE_CHECKING:
    from torch import Tensor

ENTRIES, WIDTH = 256, 64
"""Of each codebook: entries, and the length of one."""
ACOUSTIC = 15
LEADING = 12
"""Axes that the semantic book sees: the coarse sound of a frame."""
ROUNDS = 20
"""Of k-means, at most."""


@dataclass(frozen=True)
class Books:
    """How features become codes. All values are such that fp16 holds them."""

    mean: Tensor
    """[features]."""
    axes: Tensor
    """[WIDTH, features], orthonormal up to rounding."""
    semantic: Tensor
    """[ENTRIES, WIDTH], zero after the leading axes."""
    acoustic: Tensor
    """[15, ENTRIES, WIDTH], each book on what the ones before it leave."""
    leading: int = LEADING

    def tables(self) -> list[Tensor]:
        """All 16 books in the order of the codes."""
        return [self.semantic, *self.acoustic]

    def coordinates(self, vectors: Tensor) -> Tensor:
        """[frames, features] → [frames, WIDTH]."""
        return (vectors - self.mean) @ self.axes.T

    def codes(self, coordinates: Tensor) -> Tensor:
        """[frames, WIDTH] → [frames, 16] int64: the nearest entries."""
        import torch

        coarse = coordinates.clone()
        coarse[:, self.leading :] = 0
        found, left = [_nearest(coarse, self.semantic)], coordinates
        for book in self.acoustic:
            found.append(_nearest(left, book))
            left = left - book[found[-1]]
        return torch.stack(found, dim=1)

    def decoded(self, codes: Tensor) -> Tensor:
        """[frames, 16] → [frames, WIDTH]: the sum of the acoustic entries."""
        import torch

        return torch.stack([book[codes[:, 1 + index]] for index, book in enumerate(self.acoustic)]).sum(0)


def _nearest(points: Tensor, book: Tensor) -> Tensor:
    import torch

    return torch.cdist(points[None], book[None])[0].argmin(1)


def make_books(vectors: Tensor, seed: int) -> Books:
    """From the features of every frame, [frames, features]; at least ENTRIES frames."""
    import torch

    mean = vectors.mean(0).half().float()
    centred = vectors - mean
    _, axes = torch.linalg.eigh((centred.T @ centred).double())
    axes = axes.flip(1).T[:WIDTH].half().float()
    coordinates = centred @ axes.T
    coarse = coordinates.clone()
    coarse[:, LEADING:] = 0
    acoustic, left = [], coordinates
    for index in range(ACOUSTIC):
        acoustic.append(cluster(left, seed + 1 + index))
        left = left - acoustic[-1][_nearest(left, acoustic[-1])]
    return Books(mean, axes, cluster(coarse, seed), torch.stack(acoustic))


def cluster(points: Tensor, seed: int) -> Tensor:
    """[ENTRIES, WIDTH]: the means of k-means."""
    import torch
    from sklearn.cluster import KMeans

    found = KMeans(ENTRIES, init="random", n_init=1, max_iter=ROUNDS, random_state=seed).fit(points.numpy())
    return torch.from_numpy(found.cluster_centers_).half().float()


def save(books: Books, path: Path) -> None:
    from safetensors.torch import save as packed

    tensors = {name: getattr(books, name).contiguous() for name in ("mean", "axes", "semantic", "acoustic")}
    files.write_bytes(path, packed(tensors))


def load(path: Path) -> Books:
    from safetensors.torch import load_file

    tensors = load_file(path)
    return Books(tensors["mean"], tensors["axes"], tensors["semantic"], tensors["acoustic"])
