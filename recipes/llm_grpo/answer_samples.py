"""Answers as samples and batches.

A sample has `ids` [S], the prompt and its answer; `supervised` [S], true for the answer; and of an answer to train on also `rollout` [A],
the log-probability with which each of its A tokens was generated, `advantage` [], `weight` [] of a token, and `targets` [], what the answer
adds to the divisor of the loss. Each metric is a scalar with `METRIC` before its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from overtone.finetune.recipe import Batch, Sample
from overtone.recipes.language import collation

LOSS = "policy"
MISMATCH, KL, CLIPPED = "mismatch", "kl", "clipped"
"""Means over tokens: |log π − log π_rollout|, the estimate of KL(π‖π_base), and the share of tokens whose ratio is beyond the bound."""
METRIC = "metric/"
REWARD = "reward"


def collate(samples: list[Sample]) -> Batch:
    """Return a batch with an answer in each row, padded on the right."""
    return _add_rollouts(samples, collation.collate)


def pack(samples: list[Sample]) -> Batch:
    """Return a row of the answers end to end, none attending to another."""
    return _add_rollouts(samples, collation.pack)


def _add_rollouts(samples: list[Sample], lay: Callable[[list[Sample]], Batch]) -> Batch:
    """Add the metrics [K] of K answers, and to train on `rollout`, `advantages` and `weights` [M] of all tokens of answers."""
    batch = lay([{name: sample[name] for name in ("ids", "supervised")} for sample in samples])
    metrics = [name for name in samples[0] if name.startswith(METRIC)]
    tensors = {**batch.tensors, **{name: torch.stack([sample[name] for sample in samples]) for name in metrics}}
    targets = {LOSS: len(samples), **{name.removeprefix(METRIC): len(samples) for name in metrics}}
    if "rollout" in samples[0]:
        lengths = torch.tensor([len(sample["rollout"]) for sample in samples])
        tensors["rollout"] = torch.cat([sample["rollout"] for sample in samples])
        for name in ("advantage", "weight"):
            tensors[f"{name}s"] = torch.stack([sample[name] for sample in samples]).repeat_interleave(lengths)
        tokens = int(lengths.sum())
        targets |= {LOSS: sum(int(sample["targets"]) for sample in samples), **dict.fromkeys((MISMATCH, KL, CLIPPED), tokens)}
    return replace(batch, tensors=tensors, targets=targets)
