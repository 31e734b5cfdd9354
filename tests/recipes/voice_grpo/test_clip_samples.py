"""Batches of clips: which number belongs to which code."""

from __future__ import annotations

from typing import Any

import torch

from overtone.finetune.recipe import Sample
from overtone.recipes.policy.rollout_samples import make_lesson, name_metrics
from overtone.recipes.qwen3_tts.model.sequence_layout import TokenIds, make_dummy_sample
from overtone.recipes.voice_grpo.clip_samples import collate, measure_length
from tests.recipes.voice_clone.conftest import Ready


def make_clip(positions: int, ids: TokenIds, advantage: float, **metrics: float) -> Sample:
    clip = make_dummy_sample(positions, ids)
    tokens = 16 * (positions - 12) + 1
    return {**clip, **make_lesson("dapo", [-advantage] * tokens, advantage, tokens), **name_metrics(metrics)}


def test_each_code_has_the_numbers_of_its_clip(fresh: Ready) -> None:
    ids: Any = fresh.loaded.processor.ids
    samples = [make_clip(14, ids, 1.0, reward=3.0), make_clip(17, ids, 2.0, reward=4.0)]
    batch = collate(samples)
    assert [measure_length(sample) for sample in samples] == [14, 17] and batch.tensors["text"].shape == (2, 17)
    assert batch.tensors["advantages"].tolist() == [1.0] * 33 + [2.0] * 81 == (-batch.tensors["rollout"]).tolist()
    assert batch.targets["policy"] == batch.targets["mismatch"] == 114 and batch.targets["reward"] == 2
    assert torch.equal(batch.tensors["order"].sort().values, torch.arange(114))
