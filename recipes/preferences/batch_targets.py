"""The targets of a batch of answers: the loss, its metrics, and the places of each answer's tokens.

A batch has `answers` [K, A]: for each of K answers the places of its tokens among all of the batch, filled up with their number. Of pairs,
the chosen and the rejected answer follow each other. Labelled answers also have `ANSWER_LABELS` [K].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from overtone.finetune.recipe import Batch

ANSWER_LABELS = "answer_labels"
"""Key of the labels in `Batch.tensors`."""
LOSS, KL, MISMATCHED_KL = "preference", "kl", "mismatched_kl"
REWARDS = ("chosen_reward", "rejected_reward")
SIDE_METRICS = ((REWARDS[0], "chosen_log_probability", "chosen_tokens"), (REWARDS[1], "rejected_log_probability", "rejected_tokens"))
"""Metrics of each side: means over its answers."""
PAIR_METRICS = ("accuracy", "margin", "longer_preferred", "chosen_longer")
"""Means over pairs: share of pairs whose chosen answer has the higher reward, difference of the rewards, share of pairs whose longer answer
has the higher reward, and share of pairs whose chosen answer is the longer one."""
LABEL_METRICS = ("accuracy", MISMATCHED_KL, "desirable")
"""Means over labelled answers: share whose reward is on the side of z₀ that its label says, estimate of the KL divergence, and share of
desirable answers."""


def place_answers(counts: Sequence[int]) -> Tensor:
    """The tensor `answers` [K, A] for the numbers of tokens of K answers."""
    total = sum(counts)
    places = torch.arange(total).split(list(counts))
    return pad_sequence(list(places), batch_first=True, padding_value=total)


def count_predictions(batch: Batch) -> list[int]:
    """Return the number of tokens of the answers of each sample."""
    answers = batch.tensors["answers"]
    counts = (answers < batch.targets[KL]).sum(1)
    return (counts if ANSWER_LABELS in batch.tensors else counts.view(-1, 2).sum(1)).tolist()


def count_targets(rows: int, tokens: int, labels: Sequence[bool] = ()) -> dict[str, int]:
    """Number of targets of the loss and of each metric. `tokens`: of all answers. `labels`: of labelled answers."""
    sizes = (sum(labels), rows - sum(labels)) if labels else (rows, rows)
    of_sides = {name: size for names, size in zip(SIDE_METRICS, sizes, strict=True) for name in names}
    return {LOSS: rows, **dict.fromkeys(LABEL_METRICS if labels else PAIR_METRICS, rows), **of_sides, KL: tokens}
