"""The formulas of what stages, rings and experts would cost, against figures computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overtone.finetune.planning.memory import Arrangement
from overtone.finetune.planning.parallelism_planner import estimate_layout
from workshop.benchmarks import scaling_context, scaling_experts, scaling_pipeline
from workshop.benchmarks.scaling import LLAMA_8B, Model, cluster_of, work_of
from workshop.benchmarks.scaling_context import ring_hides_from
from workshop.benchmarks.scaling_experts import LAYERS

QWEN = next(layer for layer in LAYERS if layer.name == "Qwen3-30B-A3B")
SMALL = Model("small", "llm_sft", LLAMA_8B | {"num_hidden_layers": 8, "vocab_size": 512}, 1024, 2**18, "full")


def test_a_pipeline_waits_one_turn_for_each_further_stage() -> None:
    work, cluster = work_of(SMALL), cluster_of(32, 400.0)
    stage = scaling_pipeline.plan_stage(work, 4)
    assert len(stage.outline.units) == len(work.outline.units) / 4 and stage.outline.blocks == 2
    layout = estimate_layout(stage, cluster_of(8, 400.0), Arrangement("ddp", 8), "full")
    step = scaling_pipeline.add_bubble(work, cluster, layout, 4)
    turns = 2**18 / 1024 / 8
    assert step.bubble == pytest.approx(layout.seconds.computing * 3 / turns)
    whole = estimate_layout(work, cluster, Arrangement("ddp", 32), "full").seconds.computing
    assert layout.seconds.computing == pytest.approx(whole), "as many GPUs compute as much, however they share the work"
    assert scaling_pipeline.pipeline_step(work, cluster, 8) is None, "a stage has at least one machine"


def test_a_ring_hides_when_attending_takes_as_long_as_receiving() -> None:
    sent, operations = 440 * 2 * 8 * 128 * 2, 4 * 440**2 * 32 * 128 / 2
    assert operations / (989e12 * 0.4) == pytest.approx(sent / 450e9, rel=0.01)
    shape = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    assert ring_hides_from(shape, 450) == 440 and ring_hides_from(shape, 50) == 3956


def test_the_longest_sequence_is_interpolated_between_traced_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling_context, "missing_bytes", lambda model, positions, gpus, tensor: positions - 5000)
    assert scaling_context.longest_sequence(SMALL, 8, 1) == 4096
    monkeypatch.setattr(scaling_context, "missing_bytes", lambda model, positions, gpus, tensor: positions - 7300)
    assert scaling_context.longest_sequence(SMALL, 8, 1) == 7168
    monkeypatch.setattr(scaling_context, "missing_bytes", lambda model, positions, gpus, tensor: positions)
    assert scaling_context.longest_sequence(SMALL, 8, 1) == 0
    monkeypatch.setattr(scaling_context, "missing_bytes", lambda model, positions, gpus, tensor: -1.0)
    assert scaling_context.longest_sequence(SMALL, 8, 1) == scaling_context.TRACED[-1]


def test_gathering_does_not_depend_on_the_positions_and_sending_does() -> None:
    assert QWEN.weights == 128 * 3 * 2048 * 768 and scaling_experts.gathered_bytes(QWEN) == 6 * QWEN.weights
    assert scaling_experts.gathering(QWEN, 8) == pytest.approx(7 / 8 * QWEN.weights * 8 / 450e9 + 3 * 7 * 10e-6)
    assert 5 < scaling_experts.copies(QWEN, 8) < 8 == pytest.approx(scaling_experts.copies(QWEN, 10**6), rel=1e-3)
    once, twice = (scaling_experts.sending(QWEN, positions, 8) for positions in (4096, 8192))
    assert twice - 6e-5 == pytest.approx(2 * (once - 6e-5))
    assert scaling_experts.row(QWEN, 8, 2048)[-2:] == ["sending", "3.29"] and scaling_experts.row(QWEN, 8, 32768)[-2] == "gathering"
    large = replace(QWEN, experts=2048)
    assert scaling_experts.row(large, 8, 32768)[-2:] == ["sending", "–"], "it does not fit"
