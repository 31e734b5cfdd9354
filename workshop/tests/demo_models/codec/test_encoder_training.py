"""Encoder training: content of a batch, and learning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from workshop.demo_models.codec import codec_model, encoder_training
from workshop.demo_models.codec.codebooks import Codebooks
from workshop.demo_models.codec.training_clips import CodecClip


def test_a_batch_has_the_features_of_its_audio(clips: list[CodecClip], books: Codebooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_training, "HISS", (-200.0, -200.0))
    waves, targets, counted = encoder_training.make_batch(clips, books, np.random.default_rng(3))
    assert waves.shape == (encoder_training.CLIPS, encoder_training.FRAMES * 1920)
    assert 0.8 < counted.float().mean() < 1
    whole = {clip.text: books.project(clip.features.vectors(1.0)) for clip in clips}
    for wave, target in zip(waves, targets, strict=True):
        level = float(wave.abs().max())
        assert 0 < level < 0.75
        # Pitch does not depend on the level, so it identifies the place of each excerpt in one of the clips.
        tail = target[4:8] @ books.axes[:, -8:]
        assert (
            min(
                float((tail - (vectors[start : start + 4] @ books.axes[:, -8:])).abs().max())
                for vectors in whole.values()
                for start in range(len(vectors) - 4)
            )
            < 1.0
        )


def test_the_same_seed_gives_the_same_batch(clips: list[CodecClip], books: Codebooks) -> None:
    one, other = (encoder_training.make_batch(clips, books, np.random.default_rng([0, 7])) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
def test_encoder_training_learns_and_resumes_bit_for_bit(clips: list[CodecClip], books: Codebooks, tmp_path: Path) -> None:
    models = [codec_model.build_model(0) for _ in range(3)]
    before = encoder_training.measure_error(models[0], clips[:3], books)["encoder"]
    encoder_training.train_encoder(models[0], clips, books, tmp_path / "whole", 0, 24)
    encoder_training.train_encoder(models[1], clips, books, tmp_path / "parts", 0, 24, until=9)
    encoder_training.train_encoder(models[2], clips, books, tmp_path / "parts", 0, 24)
    one, other = models[0].state_dict(), models[2].state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    after = encoder_training.measure_error(models[0], clips[:3], books)
    assert after["encoder"] < 0.8 * before
    assert after["books"] < after["both"]
