"""Codebooks: nearest entries, each codebook fitted to the residuals of the ones before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from workshop.demo_models.codec import codebooks
from workshop.demo_models.codec.codebooks import Codebooks
from workshop.demo_models.codec.training_clips import CodecClip


def test_codes_are_the_nearest_entries_codebook_by_codebook(clips: list[CodecClip], books: Codebooks) -> None:
    points = books.project(clips[0].features.vectors(0.7))
    codes = books.encode(points).numpy()
    residual = points.numpy()
    for index, book in enumerate(books.acoustic.numpy()):
        distances = np.square(residual[:, None] - book).sum(-1)
        assert (distances[np.arange(len(residual)), codes[:, 1 + index]] <= distances.min(1) + 1e-3).all()
        residual = residual - book[codes[:, 1 + index]]
    coarse = points.numpy() * (np.arange(points.shape[1]) < books.leading)
    distances = np.square(coarse[:, None] - books.semantic.numpy()).sum(-1)
    assert (distances[np.arange(len(coarse)), codes[:, 0]] <= distances.min(1) + 1e-3).all()


def test_codebooks_represent_the_features_that_they_were_fitted_to(clips: list[CodecClip], books: Codebooks) -> None:
    points = torch.cat([books.project(clip.features.vectors(0.7)) for clip in clips])
    codes = books.encode(points)
    assert torch.equal(books.decode(torch.stack([codes, codes])), torch.stack([books.decode(codes)] * 2)), "of a batch, too"
    residual = points - books.decode(codes)
    assert float(residual.square().mean() / points.square().mean()) < 0.05


def test_the_axes_are_orthonormal_and_the_values_fit_fp16(books: Codebooks) -> None:
    assert torch.allclose(books.axes @ books.axes.T, torch.eye(len(books.axes)), atol=2e-3)
    for table in (books.mean, books.axes, *books.list_tables()):
        assert torch.equal(table, table.half().float())


def test_the_semantic_codebook_ignores_the_fine_axes(books: Codebooks) -> None:
    assert not books.semantic[:, books.leading :].any()


def test_codebooks_are_saved_and_loaded(books: Codebooks, tmp_path: Path) -> None:
    codebooks.save(books, tmp_path / "books.safetensors")
    again = codebooks.load(tmp_path / "books.safetensors")
    assert all(torch.equal(one, other) for one, other in zip(books.list_tables(), again.list_tables(), strict=True))
    assert torch.equal(books.axes, again.axes)
    assert torch.equal(books.mean, again.mean)


def test_the_same_seed_gives_the_same_books(clips: list[CodecClip], books: Codebooks) -> None:
    vectors = torch.cat([clip.features.vectors(gain) for gain in (0.5, 1.0) for clip in clips])
    one, other = (codebooks.run_k_means((vectors - books.mean) @ books.axes.T, seed=3) for _ in range(2))
    assert torch.equal(one, other)
