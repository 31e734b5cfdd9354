"""Compiled blocks of talker and code predictor: number of graphs for batches of all sizes, and unchanged numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo

from overtone.finetune.distributed import activation_checkpointing
from overtone.finetune.modeling import compilation
from overtone.recipes.voice_clone.recipe import RECIPE
from tests.finetune.graphs import unique_graphs

CUTS = ((0, 1), (0, 1, 2), (2, 3), (1, 1, 2, 3, 0), (2,) * 8, (0,) * 5)


@pytest.fixture
def model(fresh: Any) -> Any:
    """Given back without compiled forwards, as other tests use it."""
    torch._dynamo.reset()
    model = fresh.model.train()
    yield model
    for module in activation_checkpointing.find_outermost_blocks(model, fresh.loaded.blocks):
        module.__dict__.pop("forward", None)
    model.zero_grad(set_to_none=True)
    torch._dynamo.reset()


@pytest.mark.slow
def test_compiled_blocks_need_one_graph_per_block_class_and_one_more_for_a_single_clip(fresh: Any, model: Any) -> None:
    """A batch of one clip has a dimension of size 1, for which torch always compiles a separate graph."""
    plain = [sums(model, fresh, cut) for cut in (*CUTS, (3,))]
    compilation.compile_blocks(model, fresh.loaded.blocks, fixed=False, backend="eager")
    before = unique_graphs()
    found = [sums(model, fresh, cut) for cut in CUTS]
    assert unique_graphs() - before == len(fresh.loaded.blocks) == 2
    found.append(sums(model, fresh, (3,)))
    assert unique_graphs() - before == 3
    for one, other in zip(found, plain, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def sums(model: Any, fresh: Any, cut: tuple[int, ...]) -> list[float]:
    """Of a batch: its two losses, and the norm of their gradient."""
    model.zero_grad()
    terms = RECIPE.loss(model, RECIPE.collate([fresh.samples[number] for number in cut]))
    losses = [term.sum for term in terms.values() if term.weight]
    torch.stack(losses).sum().backward()
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    return [*(float(loss.detach()) for loss in losses), float(norm)]
