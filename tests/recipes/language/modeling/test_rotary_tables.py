"""Tests of `rotary_tables`: with each rotary type of transformers, a sample has its own table in every batch
and order."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, Gemma3TextConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from overtone.recipes.language.collation import collate, pack, pad
from overtone.recipes.language.modeling import rotary_tables
from overtone.recipes.language.modeling.causal_model import CausalModel
from tests.recipes.language.tiny_models import SHAPE, VOCABULARY

ORIGINAL = 16
"""Positions of the original model: above, some types have other tables."""
PARAMETERS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "longrope": {
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.0, 3.0, 4.0],
    },
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "proportional": {"factor": 2.0},
}
"""Rotary type → its parameters. transformers 5 has no `default` in its dictionary."""
DEPENDENT = {"dynamic": ORIGINAL, "longrope": ORIGINAL}
"""Types with a table that depends on the length of the row → the longest sample before it changes."""
LENGTHS = (9, 40, ORIGINAL, 3, 30, ORIGINAL + 1)


def make_stock(kind: str) -> Any:
    """A model in fp64 as transformers makes it."""
    positions = 64 if kind == "longrope" else ORIGINAL
    rope = {"type": kind, **PARAMETERS[kind]} if kind == "longrope" else {"rope_type": kind, "rope_theta": 1e4, **PARAMETERS[kind]}
    shape = {**SHAPE, "max_position_embeddings": positions, "rope_scaling": rope}
    own = {"original_max_position_embeddings": ORIGINAL} if kind == "longrope" else {}
    config = AutoConfig.for_model("phi3" if kind == "longrope" else "llama", **shape, **own, pad_token_id=0)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").double().eval()


def make_samples() -> list[dict[str, Tensor]]:
    chance = torch.Generator().manual_seed(3)
    return [
        {"ids": torch.randint(VOCABULARY, (length,), generator=chance), "supervised": torch.ones(length, dtype=torch.bool)}
        for length in LENGTHS
    ]


@torch.no_grad()
def losses(model: Any, *batches: Any) -> list[float]:
    return [float(model(batch.tensors, batch.lengths)[0]) for batch in batches]


@torch.no_grad()
def stock_loss(stock: Any, sample: dict[str, Tensor]) -> float:
    logits = copy.deepcopy(stock)(input_ids=sample["ids"][None], use_cache=False).logits[0, :-1]
    return float(functional.cross_entropy(logits, sample["ids"][1:], reduction="sum"))


def test_each_rotary_type_of_transformers_is_covered() -> None:
    assert set(ROPE_INIT_FUNCTIONS) - set(PARAMETERS) == set(), "add its parameters: packing and resuming must be proven for it"


@pytest.mark.parametrize("kind", sorted({"default", *ROPE_INIT_FUNCTIONS}))
def test_a_sample_has_the_loss_of_the_stock_model_in_every_batch_and_order(kind: str) -> None:
    stock, samples = make_stock(kind), make_samples()
    expected = [stock_loss(stock, sample) for sample in samples]
    model = CausalModel(copy.deepcopy(stock)).eval()
    alone = [collate([sample]) for sample in samples]
    assert losses(model, *alone) == pytest.approx(expected, rel=1e-6)
    first = losses(model, *alone[:1])
    row, total = sum(LENGTHS) + 20, sum(expected)
    for order in (samples, samples[::-1], sorted(samples, key=lambda each: len(each["ids"]))):
        together = losses(model, collate(order), pack(order), pad(pack(order), row))
        assert together == pytest.approx([total] * 3, rel=1e-6)
    assert losses(model, *alone[:1]) == first, "to the last bit, after longer ones: a resumed run has not seen those"


@pytest.mark.parametrize("kind", sorted({"default", *ROPE_INIT_FUNCTIONS}))
def test_tables_that_depend_on_the_length_are_found_by_what_they_do(kind: str) -> None:
    model = CausalModel(make_stock(kind))
    found = [module.switch for module in model.modules() if isinstance(module, rotary_tables.SampleTables)]
    assert found == ([DEPENDENT[kind]] if kind in DEPENDENT else [])


def test_the_table_of_a_row_is_that_of_the_longest_without_this_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that the test above would not notice if the shapes were too small to show it."""
    monkeypatch.setattr(rotary_tables, "find_switch", lambda _: None)
    stock, samples = make_stock("dynamic"), make_samples()
    model = CausalModel(copy.deepcopy(stock)).eval()
    expected = [stock_loss(stock, sample) for sample in samples]
    assert losses(model, pack(samples))[0] != pytest.approx(sum(expected), rel=1e-4)


def test_an_embedding_with_a_table_for_each_type_of_layer_is_asked_for_each() -> None:
    types = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(**SHAPE, head_dim=8, layer_types=types, rope_scaling={"rope_type": "dynamic", "factor": 4.0}, pad_token_id=0)
    model = CausalModel(AutoModelForCausalLM.from_config(config))
    found = [module.switch for module in model.modules() if isinstance(module, rotary_tables.SampleTables)]
    assert found == [SHAPE["max_position_embeddings"]]


def test_the_state_of_an_embedding_is_restored_also_if_it_is_changed_in_place() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("inv_freq", torch.ones(2), persistent=False)
            self.longest = 1

        def forward(self, states: Tensor, position_ids: Tensor) -> Tensor:
            if int(position_ids.max()) >= 8:
                self.longest = int(position_ids.max())
                self.get_buffer("inv_freq").mul_(0.5)
            return position_ids[..., None] * self.get_buffer("inv_freq")

    rotary = Growing()
    assert rotary_tables.find_switch(rotary) == 8
    tables = rotary_tables.SampleTables(rotary, 8)
    tables.rows = ((9, 3),)
    made = tables(torch.zeros(1), torch.tensor([[*range(9), *range(3)]]))
    assert made[0, :, 0].tolist() == [*[place * 0.5 for place in range(9)], 0.0, 1.0, 2.0]
    assert rotary.longest == 1 and rotary.get_buffer("inv_freq").tolist() == [1.0, 1.0]


def test_other_modules_are_left_alone() -> None:
    model = CausalModel(make_stock("default"))
    assert rotary_tables.find_switch(nn.Linear(2, 2)) is None and rotary_tables.separate_samples(model) == []
