"""Answers as samples and batches: `ids` [S], the prompt and its answer, and `supervised` [S], true for the answer, with what
`overtone.recipes.policy.rollout_samples` adds."""

from __future__ import annotations

from overtone.finetune.recipe import Batch, Sample
from overtone.recipes.language import collation
from overtone.recipes.policy.rollout_samples import add_rollouts

TEXT = ("ids", "supervised")


def collate(samples: list[Sample]) -> Batch:
    """Return a batch with an answer in each row, padded on the right."""
    return add_rollouts(collation.collate(select_text(samples)), samples)


def pack(samples: list[Sample]) -> Batch:
    """Return a row of the answers end to end, none attending to another."""
    return add_rollouts(collation.pack(select_text(samples)), samples)


def select_text(samples: list[Sample]) -> list[Sample]:
    """Return the tensors of the model of each sample."""
    return [{name: sample[name] for name in TEXT} for sample in samples]
