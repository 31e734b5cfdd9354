"""When blocks are compiled, how many graphs that makes, and which operations of a block are recomputed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

from overtone.finetune.config import Config
from overtone.finetune.distributed import activation_checkpointing
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import compilation
from overtone.finetune.recipe import Loaded
from tests.finetune import tiny
from tests.finetune.graphs import Counting, unique_graphs

HALF_A_BILLION = 2**29
LONG = 10**9
"""Steps; a minute of compiling is repaid by 300 seconds of training, at 396 TFLOPS."""


class Block(nn.Module):
    def __init__(self, size: int = 8, device: str = "cpu") -> None:
        super().__init__()
        self.up, self.down = nn.Linear(size, 4 * size, device=device), nn.Linear(4 * size, size, device=device)

    def forward(self, states: Tensor) -> Tensor:
        return states + self.down(nn.functional.gelu(self.up(states)))


class Other(Block):
    pass


def large(*blocks: type[Block]) -> Loaded:
    """Half a billion parameters in each block, without memory."""
    model = nn.Sequential(*(kind(size=2**13, device="meta") for kind in blocks))
    return Loaded(model, None, tuple({*blocks}), Path())


def config_of(tmp_path: Path, compiled: str, *more: tuple[str, str]) -> Config:
    return tiny.config_in(tmp_path, ("train.compile", compiled), ("train.global_batch_tokens", "1000"), *more)


def world_of(device: str = "cuda", ranks: int = 1) -> Any:
    return SimpleNamespace(device=torch.device(device), data_size=ranks)


def decide(config: Config, loaded: Loaded, world: Any, positions: int) -> compilation.Compilation:
    world.tensor = config.parallel.tensor
    return compilation.decide_compilation(config.train.compile, config.model, loaded, world, positions)


@pytest.fixture
def gpu_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """One on which torch could compile."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "triton" or None)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").touch()
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / name))
    return monkeypatch


@pytest.mark.usefixtures("gpu_machine")
def test_a_cpu_compiles_only_where_that_is_set(tmp_path: Path) -> None:
    decided = {which: decide(config_of(tmp_path, which), large(Block), world_of("cpu"), LONG) for which in ("auto", "false", "true")}
    assert [decided[which].on for which in ("auto", "false", "true")] == [False, False, True]
    assert decided["auto"].remark == decided["false"].remark == ""
    assert decided["true"].remark == "train.compile: true; the first step takes about 30 seconds longer"


@pytest.mark.usefixtures("gpu_machine")
def test_a_gpu_compiles_where_the_run_is_long_enough_to_repay_it(tmp_path: Path) -> None:
    """A block of half a billion parameters: 6 · 2^29 operations a position are 8.1 µs at 396 TFLOPS, a quarter of which is saved."""
    config = config_of(tmp_path, "auto")
    enough = 1000 + int(30 / (0.25 * 6 * HALF_A_BILLION / 395.6e12))
    for kinds, ranks in (([Block], 1), ([Block], 4), ([Block, Other], 1), ([Block, Block], 1)):
        needed = enough * ranks * len({*kinds}) // len(kinds)
        short, long = (decide(config, large(*kinds), world_of(ranks=ranks), int(needed * share)) for share in (0.98, 1.02))
        assert (short.on, long.on) == (False, True), (kinds, ranks)
        assert "positions are too few to repay it" in short.remark and "and blocks are compiled, which saves " in long.remark
    assert not decide(config_of(tmp_path, "false"), large(Block), world_of(), LONG).on
    assert decide(config_of(tmp_path, "true"), large(Block), world_of(), 1).on


def test_frozen_parameters_cost_two_thirds(tmp_path: Path) -> None:
    loaded = large(Block)
    trained = compilation.estimate_seconds(loaded, 1000)
    loaded.model.requires_grad_(False)
    assert compilation.estimate_seconds(loaded, 1000) == pytest.approx(trained * 4 / 6)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ([("parallel.tensor", "2")], "tensor parallelism"),
        ([("model.quantization", "nf4"), ("model.lora", "{rank: 2}")], "4-bit weights"),
        ([], "lengths differ"),
    ],
)
def test_auto_does_not_compile_what_would_fail_and_reports_why(
    tmp_path: Path, gpu_machine: pytest.MonkeyPatch, more: list[tuple[str, str]], reason: str
) -> None:
    loaded = replace(large(Block), varies=None if more else "their lengths differ")
    decided = decide(config_of(tmp_path, "auto", *more), loaded, world_of(), LONG)
    assert not decided.on and reason in decided.remark and decided.remark.startswith("train.compile: auto, and blocks are not compiled: ")
    assert decide(config_of(tmp_path, "auto"), large(Block), world_of(), LONG).on
    gpu_machine.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert "python3-dev" in decide(config_of(tmp_path, "auto"), large(Block), world_of(), LONG).remark
    gpu_machine.setattr("shutil.which", lambda name: "/usr/bin/cc" if name == "cc" else None)
    assert "no C compiler (gcc or clang)" in decide(config_of(tmp_path, "auto"), large(Block), world_of(), LONG).remark
    gpu_machine.setattr("importlib.util.find_spec", lambda name: None)
    assert "triton is not installed" in decide(config_of(tmp_path, "auto"), large(Block), world_of(), LONG).remark


def test_rows_are_of_fixed_size_where_they_are_packed_and_the_recipe_can_pad() -> None:
    padding = replace(tiny.RECIPE, pad=lambda batch, positions: batch)
    assert compilation.fixed_positions(True, padding, 100) == 100
    assert compilation.fixed_positions(True, tiny.RECIPE, 100) is None
    assert compilation.fixed_positions(False, padding, 100) is None


def stack(how: Literal["none", "selective", "full"], counting: Any, fixed: bool = True) -> nn.Module:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), Block())
    activation_checkpointing.wrap_blocks(model, (Block,), how)
    names = list(model.state_dict())
    compilation.compile_blocks(model, (Block,), fixed, counting)
    assert list(model.state_dict()) == names
    return model


def states_of(size: int) -> Tensor:
    """As an embedding that trains gives them."""
    return torch.randn(size, 8, requires_grad=True)


def test_equal_blocks_are_one_graph_of_one_size_and_evaluation_is_not_compiled() -> None:
    before = unique_graphs()
    model = stack("none", "eager")
    model(states_of(4)).sum().backward()
    assert unique_graphs() - before == 1
    with torch.no_grad():
        for size in range(2, 9):
            model(torch.randn(size, 8))
    assert unique_graphs() - before == 1
    model(states_of(5)).sum().backward()
    assert unique_graphs() - before == 2, "fixed sizes are fixed"


def test_blocks_of_sizes_that_vary_are_one_graph_too() -> None:
    before = unique_graphs()
    model = stack("none", "eager", fixed=False)
    for size in (4, 5, 9, 2):
        model(states_of(size)).sum().backward()
    assert unique_graphs() - before == 1


@pytest.mark.parametrize(("how", "again"), [("none", 0), ("selective", 0), ("full", 1)])
def test_products_that_selective_keeps_are_not_computed_again_in_compiled_blocks(how: Any, again: int) -> None:
    """Of each block two products forward, four backward, and under `full` the first one again, which the second one's gradient needs."""
    counting = Counting()
    model, plain = stack(how, counting.backend), stack("none", "eager")
    states = states_of(4)
    for each in (plain, model):
        each(states).square().sum().backward()
    assert counting.executed("mm") == 3 * (2 + again + 4)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_errors_of_the_compiler_are_explained() -> None:
    def failing(*_: Any) -> Any:
        raise ValueError("no such instruction")

    model = stack("none", failing)
    message = r"train\.compile: torch could not compile .*no such instruction.*; set train\.compile: false"
    with pytest.raises(UserError, match=message), compilation.explain_compiler_errors():
        model(torch.randn(4, 8))
    with pytest.raises(RuntimeError, match="^something else$"), compilation.explain_compiler_errors():
        raise RuntimeError("something else")
