"""Clips as samples and batches: the tensors of `sequence_layout`, with what `overtone.recipes.policy.rollout_samples` adds."""

from __future__ import annotations

from overtone.finetune.recipe import Batch, Sample
from overtone.recipes.policy.rollout_samples import METRIC, add_rollouts
from overtone.recipes.qwen3_tts.model.clip_scores import collate_clips

LESSON = ("rollout", "advantage", "weight", "targets")


def collate(samples: list[Sample]) -> Batch:
    """Return a batch with a clip in each row, padded on the right."""
    clips = [{name: one for name, one in sample.items() if name not in LESSON and not name.startswith(METRIC)} for sample in samples]
    return add_rollouts(collate_clips(clips)[0], samples)


def measure_length(clip: Sample) -> int:
    """Return the positions of a clip."""
    return len(clip["text"])
