"""The byte model's loss from its definition, in fp64: row by row, without dropout, sharding, padding or accumulation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from overtone.finetune.distributed.sharding import plain_name
from overtone.finetune.training.step import Training
from tests.byte_model.recipe import ByteModel

WEIGHTS = {"next": 1.0, "after_next": 0.3}


def reference(training: Training) -> ByteModel:
    """The same weights in a plain fp64 model without dropout, sharding, padding or accumulation."""
    model = ByteModel(0.0).double()
    values = {plain_name(name): parameter.full_tensor() for name, parameter in training.model.named_parameters()}
    model.load_state_dict({**values, "scale": torch.ones(())})
    return model


def plain_terms(model: ByteModel, rows: list[str]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Sums and counts of both terms, row by row, from the definition."""
    sums: dict[str, Tensor] = {name: torch.zeros((), dtype=torch.float64) for name in WEIGHTS}
    counts = dict.fromkeys(WEIGHTS, 0)
    for row in rows:
        ids = torch.tensor(list(row.encode()))
        hidden = model.embedding(ids)
        for block in model.blocks:
            hidden = block(hidden)
        for name, head, shift in (("next", model.head, 1), ("after_next", model.after_next, 2)):
            sums[name] = sums[name] + functional.cross_entropy(head(hidden[:-shift]), ids[shift:], reduction="sum")
            counts[name] += len(ids) - shift
    return sums, counts


def plain_loss(model: ByteModel, rows: list[str]) -> Tensor:
    sums, counts = plain_terms(model, rows)
    return sum((WEIGHTS[name] * sums[name] / counts[name] for name in sums), torch.zeros((), dtype=torch.float64))
