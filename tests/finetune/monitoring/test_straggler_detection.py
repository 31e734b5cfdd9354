"""A rank that computes slowly, or begins its steps late, is named; the time that ranks wait for each other does not count."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path

import pytest
import torch
from torch import nn

from overtone.finetune.distributed.process_group import World
from overtone.finetune.monitoring import straggler_detection
from overtone.finetune.monitoring.straggler_detection import WINDOW, RankTimes
from tests.launch.launching import launch, series


class Block(nn.Module):
    clock = 0.0
    """Seconds: each forward takes half of one."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        Block.clock += 0.5
        return hidden


def times_of(world: World, monkeypatch: pytest.MonkeyPatch, size: int) -> RankTimes:
    monkeypatch.setattr(straggler_detection, "gather_from_ranks", lambda world, name: [f"{name}-{rank}" for rank in range(world.size)])
    return RankTimes(dataclasses.replace(world, size=size, rank=1), nn.ModuleList([Block(), Block()]), (Block,))


def test_forward_passes_of_training_are_measured(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(straggler_detection, "gather_from_ranks", lambda *_: ["a", "b", "c"])
    monkeypatch.setattr(straggler_detection.time, "perf_counter", lambda: Block.clock)
    blocks = nn.ModuleList([Block(), Block()])
    times = RankTimes(dataclasses.replace(world, size=3, rank=1), blocks, (Block,))
    for block in blocks:
        block(torch.ones(1))
        with torch.no_grad():
            block(torch.ones(1))
    row = times.take_own(waited=2.0)
    assert row == [0.0, 1.0, 0.0, 0.0, 2.0, 0.0], "this rank's place in each half; not the evaluation"
    assert times.take_own(waited=0.0)[1] == 0.0


@pytest.mark.parametrize(
    ("computed", "waited", "kind"),
    [
        ([1.0, 1.0, 1.25], [0.1, 0.1, 0.1], "rank 2 on NAME-2 computes 25% slower than the median rank: 1.25 s"),
        ([1.0, 1.3], [0.0, 0.1], "rank 1 on NAME-1 computes 30% slower than the median rank: 1.3 s"),
        ([1.0, 1.0, 1.0], [0.9, 0.9, 0.1], "rank 2 on NAME-2 begins each step 0.8 s after the first rank, 27% of the step"),
        ([1.0, 1.0, 1.15], [0.6, 0.6, 0.1], None),
    ],
)
def test_a_rank_that_is_a_fifth_behind_is_named_once(
    world: World, monkeypatch: pytest.MonkeyPatch, computed: list[float], waited: list[float], kind: str | None
) -> None:
    times, lines = times_of(world, monkeypatch, len(computed)), list[str]()
    for _ in range(2 * WINDOW):
        times.note_all([*computed, *waited], 3.0)
        lines += times.report_stragglers()
    assert len(lines) == (kind is not None) and (kind is None or lines[0].startswith(kind.replace("NAME", platform.node())))
    for _ in range(WINDOW):  # it catches up, and falls behind once more
        times.note_all([1.0] * len(computed) + [0.1] * len(computed), 3.0)
        lines += times.report_stragglers()
    for _ in range(WINDOW):
        times.note_all([*computed, *waited], 3.0)
        lines += times.report_stragglers()
    assert len(lines) == 2 * (kind is not None)


def test_one_slow_step_is_no_straggler(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    times = times_of(world, monkeypatch, 2)
    for number in range(WINDOW + 5):
        times.note_all([1.0, 2.0 if number == 3 else 1.0, 0.1, 0.1], 3.0)
        assert times.report_stragglers() == []


def test_a_rank_that_compiles_longer_is_no_straggler(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    times = times_of(world, monkeypatch, 2)
    for number in range(WINDOW + 5):
        times.note_all([40.0, 55.0, 0.1, 0.1] if number == 0 else [0.5, 0.5, 0.1, 0.1], 3.0)
        assert times.report_stragglers() == []


SLOWED = """
import os, sys, time
import torch
from tests.causal_lm import recipe
from overtone.finetune import train
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

forward = Qwen3MLP.forward
def slowed(self, hidden):
    if os.environ["RANK"] == "1" and torch.is_grad_enabled():
        time.sleep(0.05)  # a slow processor
    return forward(self, hidden)
Qwen3MLP.forward = slowed
sys.exit(train.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_slow_rank_is_named_in_a_real_launch(tmp_path: Path) -> None:
    from tests.causal_lm.recipe import write_base

    (tmp_path / "slowed.py").write_text("import sys; sys.path.insert(0, '.')\n" + SLOWED)
    (tmp_path / "train.jsonl").write_text('{"text": "she counted the boats"}\n' * 40)
    said = launch(
        *("cpu", 2, tmp_path / "slowed.py", "--recipe", "tests/causal_lm", "--model.source", write_base(tmp_path / "base", "qwen3")),
        *("--data.train", tmp_path / "train.jsonl", "--run.dir", tmp_path / "run", "--train.steps", WINDOW + 2, "--train.micro_tokens", 60),
    )
    assert f"rank 1 on {platform.node()} computes " in said and " slower than the median rank" in said
    ranks = series(tmp_path / "run", "ranks")
    assert ranks[-1]["computed_seconds"][1] > 0.1 + ranks[-1]["computed_seconds"][0], "two blocks, 0.05 s each"
    (straggler,) = series(tmp_path / "run", "straggler")
    assert straggler["step"] == WINDOW and "rank 1" in straggler["account"]
