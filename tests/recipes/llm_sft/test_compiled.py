"""Compiled blocks and packed rows together: one graph, whatever the samples of a row, and the numbers of blocks that are not compiled."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from transformers import AutoModelForCausalLM, MistralConfig, PretrainedConfig

from finetune.distributed import activation_checkpointing
from finetune.modeling import compilation
from finetune.recipe import Batch
from finetune.training import setup
from recipes.language import varlen_attention
from recipes.language.causal_model import CausalModel, block_classes
from recipes.language.collation import pack, pad
from tests.finetune.graphs import unique_graphs
from tests.recipes.llm_sft import test_contract_gradients as gradients
from tests.recipes.llm_sft import tiny_runs
from tests.recipes.llm_sft.varlen_on_cpu import varlen_on_cpu

__all__ = ["varlen_on_cpu"]
CUTS = ((0, 1, 2), (3, 4), (2, 0, 4), (1, 1, 3, 1, 1, 0), (2, 2))
"""Rows of `gradients.samples`, of 4 to 60 positions."""
POSITIONS = 64
FAMILIES: dict[str, tuple[PretrainedConfig, int]] = {
    "qwen3": (gradients.FAMILIES["qwen3"], 1),
    "mistral, every layer in a window": (MistralConfig(**gradients.SHAPE, sliding_window=4), 1),
}
"""With the graphs of each."""


@pytest.fixture
def not_again() -> Any:
    """Called once the first step is over: from then on a graph that is compiled again is an error."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=False):
        yield lambda: setattr(torch._dynamo.config, "error_on_recompile", True)
    torch._dynamo.reset()


def model_of(family: str, attention: str) -> Any:
    torch.manual_seed(2)
    return CausalModel(AutoModelForCausalLM.from_config(copy.deepcopy(FAMILIES[family][0]), attn_implementation=attention))


def check_one_graph(family: str, how: Any, backend: str, not_again: Any, tolerance: float) -> None:
    """Against the same rows without padding, through sdpa sample by sample."""
    varlen_attention.register()
    model, plain, before = model_of(family, varlen_attention.KERNEL), model_of(family, varlen_attention.LOOP), unique_graphs()
    activation_checkpointing.wrap_blocks(model, block_classes(model), how)
    compilation.compile_blocks(model, block_classes(model), True, backend)
    for cut in CUTS:
        row = pack([gradients.samples()[number] for number in cut])
        expected = gradients.gradients(plain, [row])
        found = gradients.gradients(model, [pad(row, POSITIONS)])
        same = {name.replace("_checkpoint_wrapped_module.", ""): gradient for name, gradient in found.items()}
        assert gradients.largest_difference(same, expected) <= tolerance
        not_again()
    assert unique_graphs() - before == FAMILIES[family][1]


@pytest.mark.usefixtures("varlen_on_cpu")
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_other_samples_need_no_other_graph_of_the_kernel(family: str, not_again: Any) -> None:
    check_one_graph(family, "none", "eager", not_again, 1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("varlen_on_cpu")
@pytest.mark.parametrize("how", ["none", "selective", "full"])
def test_inductor_computes_the_same_in_one_graph(how: str, not_again: Any) -> None:
    check_one_graph("qwen3", how, "inductor", not_again, 1e-4)


def test_a_compiled_run_has_one_graph_and_the_losses_of_one_that_is_not(
    tmp_path: Path, not_again: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = [{"messages": message(number)} for number in range(12)]
    common = (("data.packing", "true"), ("train.steps", "4"), ("train.micro_tokens", "70"), ("train.global_batch_tokens", "130"))
    plain = losses(tiny_runs.trained(tmp_path / "plain", *common, ("train.compile", "false"), data=chats))
    before = unique_graphs()
    monkeypatch.setattr(setup, "compile_blocks", partial(compilation.compile_blocks, backend="eager"))
    monkeypatch.setattr("finetune.training.loop.save_due", lambda *_: not_again())
    shapes: set[torch.Size] = set()
    monkeypatch.setattr(tiny_runs, "RECIPE", replace(tiny_runs.RECIPE, pad=lambda *given: seen(pad(*given), shapes)))
    found = losses(tiny_runs.trained(tmp_path / "compiled", *common, ("train.compile", "true"), data=chats))
    assert shapes == {torch.Size([1, 70])} and unique_graphs() - before == 1 and len(plain) == 4
    assert found == pytest.approx(plain, rel=1e-5)


def seen(batch: Batch, shapes: set[torch.Size]) -> Batch:
    shapes.add(batch.tensors["ids"].shape)
    return batch


def message(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": "Who are you? " * (1 + number % 3)}, {"role": "assistant", "content": "I am. " * (1 + number % 4)}]


def losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line.get("event") == "step" or "tokens_per_second" in line]
