"""Answers as samples and batches, whatever an answer consists of.

Beside the tensors of the model, a sample has a scalar for each metric, with `METRIC` before its name; and of an answer to train on also
`rollout` [A], the log-probability with which each of its A tokens was generated, `advantage` [], `weight` [] of a token, and `targets` [],
what the answer adds to the divisor of the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from overtone.finetune.recipe import Batch, Sample
from overtone.recipes.policy.policy_objectives import count_targets, weigh_token
from overtone.recipes.policy.policy_options import ObjectiveName

LOSS = "policy"
MISMATCH, KL, CLIPPED = "mismatch", "kl", "clipped"
"""Means over tokens: |log π − log π_rollout|, the estimate of KL(π‖π_base), and the share of tokens whose ratio is beyond the bound."""
METRIC = "metric/"
REWARD = "reward"


def name_metrics(metrics: Mapping[str, float]) -> Sample:
    """Return the metrics of an answer as a part of its sample."""
    return {METRIC + name: torch.tensor(value) for name, value in metrics.items()}


def make_lesson(objective: ObjectiveName, scores: Sequence[float], advantage: float, longest: int, trained: bool = True) -> Sample:
    """Return what of a sample trains its answer. `scores`: log-probability of each of its tokens; `longest`: the limit of an answer.
    `trained`: False leaves it out of the loss, also out of the KL divergence, which needs no reward."""
    return {
        "rollout": torch.tensor(scores),
        "advantage": torch.tensor(advantage),
        "weight": torch.tensor(weigh_token(objective, len(scores), longest) * trained),
        "targets": torch.tensor(count_targets(objective, len(scores)) * trained),
    }


def add_rollouts(batch: Batch, samples: Sequence[Sample]) -> Batch:
    """Return the batch of K answers with their metrics [K], and to train on `rollout`, `advantages` and `weights` [M] of all tokens of
    answers, sample by sample."""
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
