"""Makes batches of samples: padded side by side, or packed end to end into one row."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from overtone.finetune.recipe import Batch, Sample

IGNORE = -100
"""Target of positions at which nothing is learned."""
EXPERT_BALANCE = "expert_balance"
"""The term of the loss that balances the experts (`modeling/expert_balance.py`), with one target for each sample."""
POSITIONS_PER_SAMPLE = 64
"""Average length of short samples, for `bounds_length`."""


def shift_labels(sample: Sample) -> Tensor:
    """Return the target of each position [S]: the next token if that one is supervised, otherwise `IGNORE`; `IGNORE` at the last position.

    Labels are shifted only here. The first token of a sample is never a target: there is nothing to predict it from, and in a packed row
    only another sample comes before it.
    """
    targets = torch.full_like(sample["ids"], IGNORE)
    targets[:-1] = torch.where(sample["supervised"][1:], sample["ids"][1:], IGNORE)
    return targets


def make_filler(positions: int) -> Sample:
    """Return a sample of that length in which every token is 0 and supervised, where only the length matters."""
    return {"ids": torch.zeros(positions, dtype=torch.int64), "supervised": torch.ones(positions, dtype=torch.bool)}


def collate(samples: list[Sample]) -> Batch:
    """Return a batch [B, S], padded on the right. Its lengths are for `rotary_tables`."""
    ids = pad_sequence([sample["ids"] for sample in samples], batch_first=True)
    targets = pad_sequence([shift_labels(sample) for sample in samples], batch_first=True, padding_value=IGNORE)
    return _make_batch({"ids": ids, "targets": targets}, tuple(len(sample["ids"]) for sample in samples))


def pack(samples: list[Sample]) -> Batch:
    """Return a row [1, S] of the samples end to end.

    Positions start from 0 in each sample; from this, transformers' attentions separate the samples. `bounds` [N + 1] int32, where samples
    begin and end, and the lengths are for `varlen_attention`, which does not inspect positions.
    """
    lengths = tuple(len(sample["ids"]) for sample in samples)
    rows = {
        "ids": torch.cat([sample["ids"] for sample in samples]),
        "targets": torch.cat([shift_labels(sample) for sample in samples]),
        "positions": torch.cat([torch.arange(length) for length in lengths]),
    }
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    return _make_batch({**{name: row.unsqueeze(0) for name, row in rows.items()}, "bounds": bounds}, lengths)


def pad(batch: Batch, positions: int) -> Batch:
    """Return a packed row with a fixed number of positions, so that compiled blocks see only one shape. A longer row keeps its length.

    The padding is one more sample, in which nothing is learned. All its positions are 0, as higher ones could exceed the model's table of
    positions.

    `bounds` get a fixed length too, by empty samples at the end. So there are more of them than lengths, by which `varlen_attention` knows
    such a row: the lengths, which differ from row to row, must not enter compiled blocks.
    """
    length, tensors = batch.tensors["ids"].shape[1], dict(batch.tensors)
    missing, used = max(0, positions - length), len(tensors["bounds"]) + 1
    rows = {"ids": torch.zeros(missing), "targets": torch.full((missing,), IGNORE), "positions": torch.zeros(missing)}
    for name, added in rows.items():
        tensors[name] = torch.cat([tensors[name], added.unsqueeze(0).to(torch.int64)], dim=1)
    bounds = torch.full((bounds_length(used, positions),), length + missing, dtype=torch.int32)
    bounds[: used - 1] = tensors["bounds"]
    return replace(batch, tensors={**tensors, "bounds": bounds})


def bounds_length(used: int, positions: int) -> int:
    """Return the length of the bounds of a padded row, of which `used` entries are needed.

    It is enough for samples of `POSITIONS_PER_SAMPLE` positions; for shorter samples it is doubled until they fit, so that few different
    lengths occur. It is not made for the shortest possible samples, because a kernel is started for each empty sample as well.
    """
    size = max(16, positions // POSITIONS_PER_SAMPLE)
    while size < used:
        size *= 2
    return size


def _make_batch(tensors: dict[str, Tensor], lengths: tuple[int, ...]) -> Batch:
    """Adds `supervised` [M] int64, the indices of the supervised positions in the flattened rows.

    They are found here, because on a device the host would have to wait for M.
    """
    supervised = (tensors["targets"] != IGNORE).flatten().nonzero().squeeze(1)
    count = len(supervised)
    return Batch({**tensors, "supervised": supervised}, {"nll": count, "accuracy": count, EXPERT_BALANCE: len(lengths)}, lengths)


def truncate(sample: Sample, positions: int) -> Sample:
    """Return the first positions of a sample."""
    return {name: tensor[:positions] for name, tensor in sample.items()}
