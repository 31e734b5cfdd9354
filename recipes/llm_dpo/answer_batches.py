"""Batches of answers. Each answer with its prompt is a sample of its own: both sides of a pair, or the one answer of a labelled row.

A pair is stored as one sample: `ids` [S] and `supervised` [S] of both sides end to end, and `chosen` [], the length of the first. A
labelled answer has `ids`, `supervised` and `label` [].
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from overtone.finetune.recipe import Batch, Sample
from overtone.recipes.language import collation
from overtone.recipes.language.preferences.preference_tokenization import Side
from overtone.recipes.preferences.batch_targets import ANSWER_LABELS, count_targets, place_answers


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


def pack(samples: list[Sample]) -> Batch:
    """A row of the samples' answers end to end, none attending to another."""
    return _add_places(samples, collation.pack)


def collate(samples: list[Sample]) -> Batch:
    """A batch with an answer in each row, padded on the right."""
    return _add_places(samples, collation.collate)


def _add_places(samples: list[Sample], lay: Callable[[list[Sample]], Batch]) -> Batch:
    """Adds `answers`, and of labelled answers `ANSWER_LABELS`, as `batch_targets` describes them."""
    answers = [answer for sample in samples for answer in split_sample(sample)]
    counts = [int((collation.shift_labels(answer) != collation.IGNORE).sum()) for answer in answers]
    batch, labels = lay(answers), [sample["label"] for sample in samples if "label" in sample]
    tensors = {**batch.tensors, "answers": place_answers(counts)}
    if labels:
        tensors[ANSWER_LABELS] = torch.stack(labels)
    return Batch(tensors, count_targets(len(samples), sum(counts), [bool(label) for label in labels]), batch.lengths)
