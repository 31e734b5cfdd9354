"""Batches of answers. Each answer with its prompt is a sample of its own: both sides of a pair, or the one answer of a labelled row.

A pair is stored as one sample: `ids` [S] and `supervised` [S] of both sides end to end, and `chosen` [], the length of the first. A
labelled answer has `ids`, `supervised` and `label` [].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from overtone.finetune.recipe import Batch, Sample
from overtone.recipes.language import collation
from overtone.recipes.language.preferences.preference_tokenization import Side

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


def make_pair(chosen: Side, rejected: Side) -> Sample:
    """The sample of a pair."""
    ids, supervised = torch.tensor([*chosen[0], *rejected[0]]), torch.tensor([*chosen[1], *rejected[1]])
    return {"ids": ids, "supervised": supervised, "chosen": torch.tensor(len(chosen[0]))}


def make_labelled(answer: Side, label: bool) -> Sample:
    """The sample of an answer with a label."""
    return {"ids": torch.tensor(answer[0]), "supervised": torch.tensor(answer[1]), "label": torch.tensor(label)}


def split_sample(sample: Sample) -> tuple[Sample, ...]:
    """The answers of a sample as samples of llm_sft: two of a pair, else one."""
    at = int(sample["chosen"]) if "chosen" in sample else len(sample["ids"])
    parts = (slice(at), slice(at, None)) if "chosen" in sample else (slice(at),)
    return tuple({name: sample[name][part] for name in ("ids", "supervised")} for part in parts)


def mismatch(sample: Sample, other: Sample, positions: int) -> Sample | None:
    """The prompt of a labelled answer with the answer of another one, which is cut so that both have at most `positions`; None if both have
    the same prompt."""
    (own, own_start), (answer, start) = ((each["ids"], int(each["supervised"].int().argmax())) for each in (sample, other))
    if torch.equal(own[:own_start], answer[:start]):
        return None
    end = start + positions - own_start
    return {
        "ids": torch.cat([own[:own_start], answer[start:end]]),
        "supervised": torch.cat([torch.zeros(own_start, dtype=torch.bool), other["supervised"][start:end]]),
        "label": sample["label"],
    }


def count_predictions(batch: Batch) -> list[int]:
    """Return the number of tokens of the answers of each sample."""
    answers = batch.tensors["answers"]
    counts = (answers < batch.targets[KL]).sum(1)
    return (counts if "labels" in batch.tensors else counts.view(-1, 2).sum(1)).tolist()


def pack(samples: list[Sample]) -> Batch:
    """A row of the samples' answers end to end, none attending to another."""
    return _add_places(samples, collation.pack)


def collate(samples: list[Sample]) -> Batch:
    """A batch with an answer in each row, padded on the right."""
    return _add_places(samples, collation.collate)


def _add_places(samples: list[Sample], lay: Callable[[list[Sample]], Batch]) -> Batch:
    """Adds `answers` [K, A]: for each of K answers, the places of its tokens among the targets, filled up with the number of targets; and
    of labelled answers `labels` [K]."""
    answers, places, start = [answer for sample in samples for answer in split_sample(sample)], list[Tensor](), 0
    for answer in answers:
        count = int((collation.shift_labels(answer) != collation.IGNORE).sum())
        places.append(torch.arange(start, start + count))
        start += count
    batch, labels = lay(answers), [sample["label"] for sample in samples if "label" in sample]
    tensors = {**batch.tensors, "answers": pad_sequence(places, batch_first=True, padding_value=start)}
    if labels:
        tensors["labels"] = torch.stack(labels)
    return Batch(tensors, _count_targets(samples, start), batch.lengths)


def _count_targets(samples: list[Sample], tokens: int) -> dict[str, int]:
    """Number of targets of the loss and of each metric. `tokens`: of all answers."""
    rows, labels = len(samples), [bool(sample["label"]) for sample in samples if "label" in sample]
    sizes = (sum(labels), rows - sum(labels)) if labels else (rows, rows)
    of_sides = {name: size for names, size in zip(SIDE_METRICS, sizes, strict=True) for name in names}
    return {LOSS: rows, **dict.fromkeys(LABEL_METRICS if labels else PAIR_METRICS, rows), **of_sides, KL: tokens}
