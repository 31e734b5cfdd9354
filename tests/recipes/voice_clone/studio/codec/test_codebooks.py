"""Codebooks: nearest entries, each book on what the ones before it leave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from recipes.voice_clone.studio.codec import codebooks
from recipes.voice_clone.studio.codec.codebooks import Books
from recipes.voice_clone.studio.codec.training_clips import Clip


def test_codes_are_the_nearest_entries_one_book_after_the_other(clips: list[Clip], books: Books) -> None:
    points = books.coordinates(clips[0].heard.vectors(0.7))
    codes = books.codes(points).numpy()
    left = points.numpy()
    for index, book in enumerate(books.acoustic.numpy()):
        distances = np.square(left[:, None] - book).sum(-1)
        assert (distances[np.arange(len(left)), codes[:, 1 + index]] <= distances.min(1) + 1e-3).all()
        left = left - book[codes[:, 1 + index]]
    coarse = points.numpy() * (np.arange(points.shape[1]) < books.leading)
    distances = np.square(coarse[:, None] - books.semantic.numpy()).sum(-1)
    assert (distances[np.arange(len(coarse)), codes[:, 0]] <= distances.min(1) + 1e-3).all()


def test_they_know_what_they_were_made_from(clips: list[Clip], books: Books) -> None:
    points = torch.cat([books.coordinates(clip.heard.vectors(0.7)) for clip in clips])
    left = points - books.decoded(books.codes(points))
    assert float(left.square().mean() / points.square().mean()) < 0.05


def test_the_axes_are_orthonormal_and_the_values_fit_fp16(books: Books) -> None:
    assert torch.allclose(books.axes @ books.axes.T, torch.eye(len(books.axes)), atol=2e-3)
    for table in (books.mean, books.axes, *books.tables()):
        assert torch.equal(table, table.half().float())


def test_the_semantic_book_is_blind_for_the_fine_axes(books: Books) -> None:
    assert not books.semantic[:, books.leading :].any()


def test_a_file_keeps_them(books: Books, tmp_path: Path) -> None:
    codebooks.save(books, tmp_path / "books.safetensors")
    again = codebooks.load(tmp_path / "books.safetensors")
    assert all(torch.equal(one, other) for one, other in zip(books.tables(), again.tables(), strict=True))
    assert torch.equal(books.axes, again.axes)
    assert torch.equal(books.mean, again.mean)


def test_the_same_seed_gives_the_same_books(clips: list[Clip], books: Books) -> None:
    vectors = torch.cat([clip.heard.vectors(gain) for gain in (0.5, 1.0) for clip in clips])
    one, other = (codebooks.cluster((vectors - books.mean) @ books.axes.T, seed=3) for _ in range(2))
    assert torch.equal(one, other)
