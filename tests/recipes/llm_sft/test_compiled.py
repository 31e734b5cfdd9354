"""Tests of compiled blocks with packed rows: one graph for rows of any samples, and the results of blocks that are not compiled."""

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
from transformers import MistralConfig, PretrainedConfig, Qwen3Config

from overtone.finetune.distributed import activation_checkpointing
from overtone.finetune.modeling import compilation
from overtone.finetune.recipe import Batch
from overtone.finetune.training import setup
from overtone.recipes.language.collation import pack, pad
from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.modeling.causal_model import find_block_classes
from tests.finetune.graphs import unique_graphs
from tests.recipes.language.tiny_models import SHAPE, compute_gradients, largest_difference, make_model, make_samples
from tests.recipes.llm_sft import tiny_runs
from tests.recipes.llm_sft.varlen_on_cpu import varlen_on_cpu

__all__ = ["varlen_on_cpu"]
CUTS = ((0, 1, 2), (3, 4), (2, 0, 4), (1, 1, 3, 1, 1, 0), (2, 2))
"""Indices into `make_samples` for each row, of 4 to 60 positions."""
POSITIONS = 64
FAMILIES: dict[str, tuple[PretrainedConfig, int]] = {
    "qwen3": (Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=True), 1),
    "mistral, every layer in a window": (MistralConfig(**SHAPE, sliding_window=4), 1),
}
"""Config, and expected number of graphs."""


@pytest.fixture
def forbid_recompilation() -> Any:
    """Call it after the first step: from then on, compiling a graph again is an error."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=False):
        yield lambda: setattr(torch._dynamo.config, "error_on_recompile", True)
    torch._dynamo.reset()


def check_one_graph(family: str, how: Any, backend: str, forbid_recompilation: Any, tolerance: float) -> None:
    """Compare with the same rows without padding, computed by sdpa in a loop over the samples."""
    kernel, loop = (copy.deepcopy(FAMILIES[family][0]) for _ in range(2))  # a model changes its config
    model, plain, before = make_model(kernel, varlen_attention.KERNEL), make_model(loop, varlen_attention.LOOP), unique_graphs()
    activation_checkpointing.wrap_blocks(model, find_block_classes(model), how)
    compilation.compile_blocks(model, find_block_classes(model), True, backend)
    for cut in CUTS:
        row = pack([make_samples()[number] for number in cut])
        expected = compute_gradients(plain, [row])
        found = compute_gradients(model, [pad(row, POSITIONS)])
        same = {name.replace("_checkpoint_wrapped_module.", ""): gradient for name, gradient in found.items()}
        assert largest_difference(same, expected) <= tolerance
        forbid_recompilation()
    assert unique_graphs() - before == FAMILIES[family][1]


@pytest.mark.usefixtures("varlen_on_cpu")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_kernel_needs_one_graph_for_rows_of_any_samples(family: str, forbid_recompilation: Any) -> None:
    check_one_graph(family, "none", "eager", forbid_recompilation, 1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("varlen_on_cpu")
@pytest.mark.parametrize("how", ["none", "selective", "full"])
def test_inductor_gives_the_same_gradients_with_one_graph(how: str, forbid_recompilation: Any) -> None:
    check_one_graph("qwen3", how, "inductor", forbid_recompilation, 1e-4)


def test_a_compiled_run_has_one_graph_and_the_losses_of_an_uncompiled_run(
    tmp_path: Path, forbid_recompilation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = [{"messages": message(number)} for number in range(12)]
    common = (("data.packing", "true"), ("train.steps", "4"), ("train.micro_tokens", "70"), ("train.global_batch_tokens", "130"))
    plain = losses(tiny_runs.trained(tmp_path / "plain", *common, ("train.compile", "false"), data=chats))
    before = unique_graphs()
    monkeypatch.setattr(setup, "compile_blocks", partial(compilation.compile_blocks, backend="eager"))
    monkeypatch.setattr("overtone.finetune.training.loop.save_due", lambda *_: forbid_recompilation())
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
