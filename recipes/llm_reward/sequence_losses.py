"""Batches of sequences whose value is read at the last token, and the sums of their losses: pairs of answers, and rows with labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid

from overtone.finetune.recipe import Batch, Sample, Term
from overtone.recipes.language import collation

from .sequence_rows import split_sample

LOSS, CENTERING, METRICS = "preference", "centering", ("accuracy", "margin", "chosen_reward", "rejected_reward")
"""Means over pairs: share of pairs whose chosen answer has the higher reward, difference of the rewards, and the rewards."""
CROSS_ENTROPY, ACCURACY, SHARE = "cross_entropy", "accuracy", "share"
MOST_MEASURED = 20
"""Most classes of which each has its own accuracy in the log."""


def pack(samples: list[Sample]) -> Batch:
    """A row of N sequences end to end, with `supervised` [N], the places of their last tokens, and `labels` [B] or `margins` [B]."""
    batch = collation.pack([side for sample in samples for side in split_sample(sample)])
    return _finish(batch, batch.tensors["bounds"][1:].long() - 1, samples)


def collate(samples: list[Sample]) -> Batch:
    """As `pack`, with the N sequences as padded rows."""
    batch = collation.collate([side for sample in samples for side in split_sample(sample)])
    width, lengths = batch.tensors["ids"].shape[1], torch.tensor(batch.lengths)
    return _finish(batch, torch.arange(len(lengths)) * width + lengths - 1, samples)


def _finish(batch: Batch, last: Tensor, samples: list[Sample]) -> Batch:
    tensors, count = {**batch.tensors, "supervised": last}, len(samples)
    if "label" not in samples[0]:
        margins = torch.stack([sample["margin"] for sample in samples])
        return Batch({**tensors, "margins": margins}, dict.fromkeys((LOSS, CENTERING, *METRICS), count), batch.lengths)
    names = [CROSS_ENTROPY, ACCURACY, *(name for names in name_class_terms(int(samples[0]["classes"])) for name in names)]
    labels = torch.stack([sample["label"] for sample in samples])
    return Batch({**tensors, "labels": labels}, dict.fromkeys(names, count), batch.lengths)


def name_class_terms(classes: int) -> list[tuple[str, str]]:
    """For each class the names of two terms: correct guesses, and rows of the class, both as shares of all rows. None for many classes."""
    return [(f"{ACCURACY}_{number}", f"{SHARE}_{number}") for number in range(classes)] if classes <= MOST_MEASURED else []


def compute_terms(model: nn.Module, batch: Batch) -> dict[str, Term]:
    """The loss of the pairs or rows and their metrics, as sums."""
    values = model(batch.tensors, batch.lengths)
    if "labels" in batch.tensors:
        return compare_classes(values, batch.tensors["labels"])
    return compare_sides(values.view(-1, 2), batch.tensors["margins"], float(model.centering))  # type: ignore[arg-type]


def compare_sides(rewards: Tensor, margins: Tensor, centering: float) -> dict[str, Term]:
    """−log σ(r_chosen − r_rejected − margin) of rewards [B, 2] and margins [B]: Bradley & Terry 1952, as Ouyang et al. 2022
    (arXiv:2203.02155), eq. 1, with the margin of Touvron et al. 2023 (arXiv:2307.09288), eq. 2; and `centering` times the squared sum of
    both rewards."""
    differences = rewards[:, 0] - rewards[:, 1]
    found = rewards.detach()
    measured = (differences.detach() > 0, differences.detach(), *found.unbind(1))
    return {
        LOSS: Term(-logsigmoid(differences - margins.to(differences.dtype)).sum(), 1.0),
        CENTERING: Term(rewards.sum(1).square().sum(), centering),
        **{name: Term(each.sum().to(found.dtype), 0.0) for name, each in zip(METRICS, measured, strict=True)},
    }


def compare_classes(logits: Tensor, labels: Tensor) -> dict[str, Term]:
    """Cross-entropy of logits [B, classes] and labels [B] in nats, correct guesses, and both counts of each class."""
    hits = logits.detach().argmax(1) == labels
    terms = {CROSS_ENTROPY: Term(cross_entropy(logits, labels, reduction="sum"), 1.0), ACCURACY: Term(hits.sum().to(logits.dtype), 0.0)}
    for number, (right, rows) in enumerate(name_class_terms(logits.shape[1])):
        of_class = labels == number
        terms |= {right: Term((hits & of_class).sum().to(logits.dtype), 0.0), rows: Term(of_class.sum().to(logits.dtype), 0.0)}
    return terms


def report(means: dict[str, float]) -> dict[str, float]:
    """The means with the accuracy of each class that has rows, in place of the two shares of which it is the ratio."""
    kept = dict(means)
    for name in [name for name in means if name.startswith(f"{SHARE}_")]:
        share, right = kept.pop(name), f"{ACCURACY}_{name.removeprefix(f'{SHARE}_')}"
        hits = kept.pop(right)
        if share > 0:
            kept[right] = hits / share
    return kept
