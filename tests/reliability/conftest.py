"""The world of one, as the tests of the single rooms join it."""

from __future__ import annotations

import torch

from tests.finetune.conftest import test_recipes_are_built_in, world

__all__ = ["test_recipes_are_built_in", "world"]

torch.set_num_threads(1)  # as the victims have it: what a run in this process computes is compared with theirs, bit by bit
