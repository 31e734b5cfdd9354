"""Samples as batches: padded side by side, or laid end to end."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from finetune.recipe import Batch, Sample

IGNORE = -100
"""In place of a target: nothing is learned here."""


def following(sample: Sample) -> Tensor:
    """For each position [S] the token that comes next, where that is supervised; `IGNORE` elsewhere, and at the end.

    The one shift of the labels. A sample's first token is nobody's target: there is nothing to predict it from, and in a packed row only
    another sample.
    """
    targets = torch.full_like(sample["ids"], IGNORE)
    targets[:-1] = torch.where(sample["supervised"][1:], sample["ids"][1:], IGNORE)
    return targets


def monotonous(positions: int) -> Sample:
    """A sample of which only the length matters; all of it is learned."""
    return {"ids": torch.zeros(positions, dtype=torch.int64), "supervised": torch.ones(positions, dtype=torch.bool)}


def collate(samples: list[Sample]) -> Batch:
    """[B, S], padded on the right."""
    ids = pad_sequence([sample["ids"] for sample in samples], batch_first=True)
    targets = pad_sequence([following(sample) for sample in samples], batch_first=True, padding_value=IGNORE)
    return _batch({"ids": ids, "targets": targets})


def pack(samples: list[Sample]) -> Batch:
    """[1, S], one sample after another. Positions start again with each, by which every attention of transformers tells them apart."""
    rows = {
        "ids": torch.cat([sample["ids"] for sample in samples]),
        "targets": torch.cat([following(sample) for sample in samples]),
        "positions": torch.cat([torch.arange(len(sample["ids"])) for sample in samples]),
    }
    return _batch({name: row.unsqueeze(0) for name, row in rows.items()})


def _batch(tensors: dict[str, Tensor]) -> Batch:
    count = int((tensors["targets"] != IGNORE).sum())
    return Batch(tensors, {"nll": count, "accuracy": count})


def truncate(sample: Sample, positions: int) -> Sample:
    """The first positions of a sample."""
    return {name: tensor[:positions] for name, tensor in sample.items()}
