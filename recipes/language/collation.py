"""Samples as batches: padded side by side, or laid end to end."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from finetune.recipe import Batch, Sample

IGNORE = -100
"""In place of a target: nothing is learned here."""
SHORT = 64
"""Positions of a sample that is short on average, for `rooms`."""


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
    """[1, S], one sample after another. Positions start again with each, by which every attention of transformers keeps them apart;
    `bounds` [N + 1] and the lengths are for those that need not look (`varlen_attention`)."""
    lengths = tuple(len(sample["ids"]) for sample in samples)
    rows = {
        "ids": torch.cat([sample["ids"] for sample in samples]),
        "targets": torch.cat([following(sample) for sample in samples]),
        "positions": torch.cat([torch.arange(length) for length in lengths]),
    }
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    return _batch({**{name: row.unsqueeze(0) for name, row in rows.items()}, "bounds": bounds}, lengths)


def pad(batch: Batch, positions: int) -> Batch:
    """A packed row with as many positions as every other one, so that compiled blocks see one shape: what is added is a sample of its own,
    in which nothing is learned. A longer row stays as it is, but for its bounds.

    Every position of what is added is 0: higher ones could be beyond a model's table of positions, and a rotary embedding that scales with
    the highest position of a row would compute the real samples in another way.

    `bounds` get a fixed length, too, by empty samples at the end, and the lengths, which differ from row to row, are dropped.
    """
    length, tensors = batch.tensors["ids"].shape[1], dict(batch.tensors)
    missing, held = max(0, positions - length), len(tensors["bounds"]) + 1
    rows = {"ids": torch.zeros(missing), "targets": torch.full((missing,), IGNORE), "positions": torch.zeros(missing)}
    for name, added in rows.items():
        tensors[name] = torch.cat([tensors[name], added.unsqueeze(0).to(torch.int64)], dim=1)
    bounds = torch.full((rooms(held, positions),), length + missing, dtype=torch.int32)
    bounds[: held - 1] = tensors["bounds"]
    return replace(batch, tensors={**tensors, "bounds": bounds}, lengths=())


def rooms(held: int, positions: int) -> int:
    """Length of the bounds of a row of fixed shape: as for samples of `SHORT` positions on average, or, for a row of shorter ones, twice as
    much, and so on, that there be few lengths in all. Not as for the shortest samples: a kernel is started for each empty one, too."""
    size = max(16, positions // SHORT)
    while size < held:
        size *= 2
    return size


def _batch(tensors: dict[str, Tensor], lengths: tuple[int, ...] = ()) -> Batch:
    """With the numbers of the supervised positions in the flattened rows, [M] int64: only the host can know M without waiting."""
    supervised = (tensors["targets"] != IGNORE).flatten().nonzero().squeeze(1)
    count = len(supervised)
    return Batch({**tensors, "supervised": supervised}, {"nll": count, "accuracy": count}, lengths)


def truncate(sample: Sample, positions: int) -> Sample:
    """The first positions of a sample."""
    return {name: tensor[:positions] for name, tensor in sample.items()}
