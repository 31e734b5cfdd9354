"""Config and launch file agree or the error names both; a model is sharded as configured."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from overtone.finetune.config import Config, Parallel
from overtone.finetune.distributed import activation_checkpointing, sharding, tensor_parallel
from overtone.finetune.distributed.process_group import World, join, leave
from overtone.finetune.distributed.sharding import Layout, check_sharding, choose_strategy, make_layout, plain_name, shard
from overtone.finetune.errors import UserError
from tests.finetune import fork_server, tiny

HERE = torch.device("cpu")
FSDP = {"ACCELERATE_USE_FSDP": "true"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.forwards = 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        return torch.tanh(self.linear(hidden))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(3, 1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def config(tmp_path: Path, *overrides: tuple[str, str]) -> Config:
    return tiny.config_in(tmp_path, *overrides)


@pytest.mark.parametrize(
    ("asked", "environ", "chosen"),
    [
        ("auto", {}, "ddp"),
        ("auto", FSDP, "fsdp"),
        ("auto", {"ACCELERATE_USE_FSDP": "False"}, "ddp"),
        ("fsdp", {}, "fsdp"),
        ("fsdp", FSDP, "fsdp"),
        ("ddp", {}, "ddp"),
    ],
)
def test_the_strategy_follows_config_and_launch_file(tmp_path: Path, asked: str, environ: dict[str, str], chosen: str) -> None:
    settings = config(tmp_path, ("parallel.strategy", asked))
    assert choose_strategy(settings.parallel, settings.train, environ) == chosen


@pytest.mark.parametrize(
    ("overrides", "environ", "message"),
    [
        ([("parallel.strategy", "ddp")], FSDP, ["parallel.strategy is ddp", "sets FSDP", "configs/ddp.yaml"]),
        ([], {"ACCELERATE_MIXED_PRECISION": "bf16"}, ["mixed_precision: bf16", "train.precision: fp32"]),
        ([("train.precision", "bf16")], {"ACCELERATE_MIXED_PRECISION": "fp16"}, ["mixed_precision: fp16", "train.precision: bf16"]),
        ([], {"ACCELERATE_MIXED_PRECISION": "fp8"}, ["mixed_precision: fp8", "train.precision: fp32"]),
        (
            [],
            {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"},
            ["gradient_accumulation_steps: 4", "train.global_batch_tokens: 300", "train.micro_tokens: 100"],
        ),
        ([], {**FSDP, "FSDP_OFFLOAD_PARAMS": "true"}, ["fsdp_offload_params", "set it to false"]),
    ],
)
def test_an_error_about_a_contradiction_names_both_sides(
    tmp_path: Path, overrides: list[tuple[str, str]], environ: dict[str, str], message: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        settings = config(tmp_path, *overrides)
        choose_strategy(settings.parallel, settings.train, environ)
    assert [words for words in message if words not in str(caught.value)] == []


def test_a_launch_file_that_agrees_with_the_config_is_accepted(tmp_path: Path) -> None:
    environ = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1", "FSDP_OFFLOAD_PARAMS": "false"}
    settings = config(tmp_path, ("train.precision", "bf16"))
    assert choose_strategy(settings.parallel, settings.train, environ) == "ddp"
    settings = config(tmp_path)
    assert choose_strategy(settings.parallel, settings.train, {"ACCELERATE_MIXED_PRECISION": "no"}) == "ddp"


def test_the_compute_dtype_follows_the_precision(tmp_path: Path) -> None:
    assert sharding.compute_dtype(config(tmp_path, ("train.precision", "bf16")).train.precision) == torch.bfloat16
    assert sharding.compute_dtype(config(tmp_path, ("train.precision", "fp32")).train.precision) == torch.float32


STRATEGIES: tuple[sharding.Strategy, ...] = ("ddp", "zero1", "zero2", "fsdp", "hsdp")


@pytest.mark.parametrize(
    ("strategy", "replicate", "layout"),
    [
        ("ddp", "1", {"replicate": 8, "shard": 1}),
        ("zero1", "1", {"shard": 8}),
        ("zero2", "1", {"shard": 8}),
        ("fsdp", "1", {"shard": 8}),
        ("hsdp", "2", {"replicate": 2, "shard": 4}),
        ("hsdp", "8", {"replicate": 8, "shard": 1}),
    ],
)
def test_the_mesh_of_a_strategy(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, strategy: sharding.Strategy, replicate: str, layout: dict[str, int]
) -> None:
    def recorded(device: str, shape: tuple[int, ...], mesh_dim_names: tuple[str, ...]) -> dict[str, int]:
        assert device == "cpu"
        return dict(zip(mesh_dim_names, shape, strict=True))

    monkeypatch.setattr(sharding, "init_device_mesh", recorded)
    found = make_layout(strategy, config(tmp_path, ("parallel.replicate", replicate)).parallel, dataclasses.replace(world, size=8))
    assert found == Layout(layout, layout)  # type: ignore[arg-type]


def test_adjacent_ranks_form_the_tensor_axis_of_the_mesh(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[tuple[int, ...], tuple[str, ...]]] = []

    def recorded(device: str, shape: tuple[int, ...], mesh_dim_names: tuple[str, ...]) -> dict[str, str]:
        made.append((shape, mesh_dim_names))
        return {name: f"{name} of {len(shape)}" for name in mesh_dim_names}

    monkeypatch.setattr(sharding, "init_device_mesh", recorded)
    found = make_layout("fsdp", config(tmp_path, ("parallel.tensor", "2")).parallel, dataclasses.replace(world, size=8))
    assert made == [((8,), ("shard",)), ((4, 2), ("shard", "tensor"))], "the last axis is that of neighbours"
    assert found == Layout({"shard": "shard of 1"}, "shard of 2", {"shard": "shard of 2", "tensor": "tensor of 2"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("strategy", "size", "overrides", "message"),
    [
        ("hsdp", 4, [], ["hsdp on 4 ranks", "parallel.replicate: 1", "divides 4", "parallel.strategy: fsdp"]),
        ("hsdp", 4, [("parallel.replicate", "3")], ["hsdp on 4 ranks", "parallel.replicate: 3", "divides 4"]),
        ("hsdp", 1, [("parallel.replicate", "2")], ["hsdp on 1 ranks", "parallel.replicate: 2"]),
        ("fsdp", 4, [("parallel.replicate", "2")], ["parallel.replicate: 2", "parallel.strategy: hsdp"]),
        ("fsdp", 4, [("parallel.offload", "true")], ["parallel.offload: true on a CPU", "remove it"]),
        (
            "hsdp",
            4,
            [("parallel.replicate", "2"), ("parallel.tensor", "2")],
            ["parallel.tensor: 2 with parallel.strategy: hsdp", "works only with fsdp"],
        ),
        ("ddp", 4, [("parallel.tensor", "2")], ["parallel.tensor: 2 with parallel.strategy: ddp", "set parallel.strategy: fsdp"]),
        ("fsdp", 4, [("parallel.tensor", "2"), ("train.compile", "true")], ["parallel.tensor: 2 with train.compile", "remove one"]),
        ("fsdp", 4, [("parallel.tensor", "3")], ["parallel.tensor: 3 does not divide the number of ranks, 4"]),
    ],
)
def test_incompatible_settings_are_refused(
    tmp_path: Path, world: World, strategy: sharding.Strategy, size: int, overrides: list[tuple[str, str]], message: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        settings = config(tmp_path, *overrides)
        sharding.check_plan(strategy, settings.parallel, settings.train, dataclasses.replace(world, size=size))
    assert [words for words in message if words not in str(caught.value)] == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_compatible_settings_are_accepted(tmp_path: Path, world: World, strategy: sharding.Strategy) -> None:
    overrides = [("parallel.replicate", "2")] if strategy == "hsdp" else []
    settings = config(tmp_path, *overrides)
    sharding.check_plan(strategy, settings.parallel, settings.train, dataclasses.replace(world, size=4))
    on_gpu = dataclasses.replace(world, size=4, device=torch.device("cuda"))
    settings = config(tmp_path, *overrides, ("parallel.offload", "true"))
    sharding.check_plan(strategy, settings.parallel, settings.train, on_gpu)


@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_blocks_and_root_are_sharded_in_the_configured_types(tmp_path: Path, world: World, strategy: sharding.Strategy) -> None:
    model = Stack()
    layout = shard(model, (Block,), strategy, config(tmp_path).parallel, torch.bfloat16, world)
    check_sharding(model, (Block,), layout, world, HERE)
    units = ["", "blocks.0", "blocks.1"] if strategy == "fsdp" else []
    assert [name for name, module in model.named_modules() if isinstance(module, FSDPModule)] == units
    placements = (Shard(0),) if strategy == "fsdp" else (Replicate(), Shard(0))
    assert all(isinstance(p, DTensor) and p.placements == placements and p.dtype == torch.float32 for p in model.parameters())
    seen: list[torch.dtype] = []
    model.blocks[1].linear.register_forward_pre_hook(lambda module, _: seen.append(module.weight.dtype))
    model(torch.ones(2, 3)).sum().backward()
    assert seen == [torch.bfloat16], "masters are fp32, the computation is not"
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("how", ["selective", "full"])
def test_recomputation_inside_shards_runs_each_block_twice_and_keeps_the_names(
    tmp_path: Path, world: World, how: Literal["selective", "full"]
) -> None:
    torch.manual_seed(0)
    plain, model = Stack(), Stack()
    model.load_state_dict(plain.state_dict())
    plain(torch.ones(2, 3)).sum().backward()
    activation_checkpointing.wrap_blocks(model, (Block,), how)
    shard(model, (Block,), "fsdp", config(tmp_path).parallel, torch.float32, world)
    model(torch.ones(2, 3)).sum().backward()
    assert [module.forwards for module in model.modules() if isinstance(module, Block)] == [2, 2]
    own = {plain_name(name): parameter for name, parameter in model.named_parameters()}
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(own[name].grad.full_tensor(), parameter.grad)
    assert own.keys() == dict(plain.named_parameters()).keys()


def test_a_model_that_is_not_sharded_is_noticed(tmp_path: Path, world: World) -> None:
    with pytest.raises(RuntimeError, match="the model is not sharded"):
        check_sharding(Stack(), (Block,), make_layout("fsdp", config(tmp_path).parallel, world), world, HERE)


def test_a_mesh_of_another_size_is_noticed(tmp_path: Path, world: World) -> None:
    model = Stack()
    layout = shard(model, (Block,), "fsdp", config(tmp_path).parallel, torch.float32, world)
    larger = World(0, 2, world.device, world.accelerator, world.votes)
    with pytest.raises(RuntimeError, match="the mesh has 1 ranks, the process group 2"):
        check_sharding(model, (Block,), layout, larger, HERE)


def test_a_parameter_on_another_mesh_or_none_is_noticed(tmp_path: Path, world: World) -> None:
    model = Stack()
    layout = shard(model, (Block,), "fsdp", config(tmp_path).parallel, torch.float32, world)
    with pytest.raises(RuntimeError, match=r"blocks\.0\.linear\.weight is not sharded over the run's mesh"):
        check_sharding(model, (Block,), make_layout("ddp", config(tmp_path).parallel, world), world, HERE)
    model.late = nn.Parameter(torch.ones(3))
    with pytest.raises(RuntimeError, match="late is not sharded over the run's mesh"):
        check_sharding(model, (Block,), layout, world, HERE)


def test_masters_in_half_precision_are_noticed_unless_they_are_frozen(tmp_path: Path, world: World) -> None:
    model = Stack()
    model.head.bfloat16()
    layout = shard(model, (Block,), "fsdp", config(tmp_path).parallel, torch.float32, world)
    with pytest.raises(RuntimeError, match=r"head\.weight is trained in torch\.bfloat16; master weights must be float32"):
        check_sharding(model, (Block,), layout, world, HERE)
    model.head.requires_grad_(False)
    check_sharding(model, (Block,), layout, world, HERE)


def clipped(model: nn.Module, largest: float) -> float:
    """As a step does; the norm before."""
    gradients = sharding.group_by_layout(parameter.grad for parameter in model.parameters() if parameter.grad is not None)
    norm = float(sharding.gradient_norm(gradients))
    sharding.clip_gradients(gradients, norm, largest)
    return norm


def test_gradients_are_clipped_to_the_global_norm(world: World) -> None:
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))
    model = Stack()
    fully_shard(model, mesh=mesh)
    model(100 * torch.ones(4, 3)).sum().backward()
    before = torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()])
    assert clipped(model, 0.5) == pytest.approx(float(before.norm()), rel=1e-6)
    after = torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()])
    torch.testing.assert_close(after, before * 0.5 / before.norm())
    assert clipped(model, 10.0) == pytest.approx(0.5, rel=1e-5)
    torch.testing.assert_close(torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()]), after)


@pytest.mark.parametrize(
    ("strategy", "reduced", "gathered"),
    [
        ("ddp", [False, True], [True, False]),
        ("zero1", [False, True], [True, False]),
        ("zero2", [True, True], [True, False]),
        ("fsdp", [True, True], [False, False]),
        ("hsdp", [not sharding.FILLS_UNUSED, True], [False, False]),
    ],
)
def test_strategies_keep_gradients_and_weights_between_micro_batches(
    tmp_path: Path, world: World, strategy: sharding.Strategy, reduced: list[bool], gathered: list[bool]
) -> None:
    """After each of two micro-batches: are the gradients reduced, and does the rank hold whole weights? After the last one none may."""
    model = Stack()
    shard(model, (Block,), strategy, config(tmp_path).parallel, torch.float32, world)
    found = []
    for last in (False, True):
        sharding.prepare_backward(model, strategy, last)
        model(torch.ones(2, 3)).sum().backward()
        # A gathered weight stands in the place of its shard, which alone gets a reduced gradient.
        kept = not any(isinstance(parameter, DTensor) for parameter in model.parameters())
        if kept:
            sharding.reshard(model)
        found.append((all(parameter.grad is not None for parameter in model.parameters()), kept))
    assert found == list(zip(reduced, gathered, strict=True))


def test_reshard_gives_gathered_parameters_back(tmp_path: Path, world: World) -> None:
    model = Stack()
    shard(model, (Block,), "fsdp", config(tmp_path).parallel, torch.float32, world)
    with torch.no_grad():
        model(torch.ones(2, 3))
    assert not isinstance(model.head.weight, DTensor), "the root keeps what it gathered; otherwise this test shows nothing"
    sharding.reshard(model)
    assert all(isinstance(p, DTensor) for p in model.parameters())


def test_plain_name_removes_wrapper_names() -> None:
    assert plain_name("talker.blocks.0._checkpoint_wrapped_module.up.weight") == "talker.blocks.0.up.weight"
    assert plain_name("head.weight") == "head.weight"


class NormedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 10), nn.Linear(10, 6)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(torch.tanh(self.up(self.norm(hidden))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks, self.head = nn.Embedding(50, 6), nn.ModuleList([NormedBlock(), NormedBlock()]), nn.Linear(6, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden).clone()  # no view: fully_shard warns of those


def norms_of_rank(folder: Path) -> dict[str, dict[str, Any]]:
    """On one of four ranks, for each strategy: the norm before clipping and the clipped gradients, beside those of one process."""
    plans: tensor_parallel.Plans = {tensor_parallel.class_path(NormedBlock()): {"up": "outputs", "down": "inputs"}}
    world, found = join((), folder), dict[str, dict[str, Any]]()
    torch.manual_seed(0)
    whole = Model()
    rows = torch.arange(24).reshape(4, 6)
    parallels = {
        "tensor": Parallel(strategy="fsdp", tensor=2),
        "hsdp": Parallel(strategy="hsdp", replicate=2),
        "fsdp": Parallel(strategy="fsdp"),
        "ddp": Parallel(strategy="ddp"),
    }
    for name, parallel in parallels.items():
        plain, model = copy.deepcopy(whole), copy.deepcopy(whole)
        assert parallel.strategy != "auto"
        shard(model, (NormedBlock,), parallel.strategy, parallel, torch.float32, world, plans)
        shares, group = 4 // parallel.tensor, world.rank // parallel.tensor  # ranks that share matrices see the same rows
        plain(rows).square().sum().backward()
        (shares * model(rows.chunk(shares)[group]).square().sum()).backward()  # fully_shard averages over the shares
        right = float(torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5))
        norm = clipped(model, 0.5)
        both = zip(model.named_parameters(), plain.parameters(), strict=True)
        wrong = [key for (key, own), other in both if not torch.allclose(own.grad.full_tensor(), other.grad, rtol=1e-4, atol=1e-6)]
        found[name] = {"norm": norm, "right": right, "wrong": wrong, "axes": sorted({len(own.placements) for own in model.parameters()})}
    leave()
    return found


def test_on_four_ranks_the_norm_is_that_of_one_process(tmp_path: Path) -> None:
    """Under tensor parallelism a matrix lies over both axes of the ranks, its norms over one; under hsdp a shard lies on two ranks."""
    ranks = fork_server.run_ranks(4, norms_of_rank, tmp_path)
    assert all(found == ranks[0] for found in ranks), "every rank clips by the same norm"
    assert [*ranks[0]] == ["tensor", "hsdp", "fsdp", "ddp"]
    for name, found in ranks[0].items():
        assert found["norm"] == pytest.approx(found["right"], rel=1e-5), name
        assert found["right"] > 1 and found["wrong"] == [], name
    assert {name: found["axes"] for name, found in ranks[0].items()} == {"tensor": [1, 2], "hsdp": [2], "fsdp": [1], "ddp": [2]}


class Experts(nn.Module):
    """A block of equally large experts, of which a micro-batch reaches some, or none."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(3)])

    def forward(self, hidden: torch.Tensor, chosen: tuple[int, ...]) -> torch.Tensor:
        for number in chosen:
            hidden = hidden + torch.tanh(self.experts[number](hidden))
        return hidden


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Experts(), Experts()]), nn.Linear(4, 4)

    def forward(self, hidden: torch.Tensor, chosen: tuple[int, ...]) -> torch.Tensor:
        hidden = self.blocks[0](hidden, chosen)
        if chosen:
            hidden = self.blocks[1](hidden, chosen[:1])
        return self.head(hidden).clone()


ROUTES = {
    "all": [((0, 1, 2), (0, 1, 2)), ((0, 1, 2), (0, 1, 2)), ((2, 1, 0), (0, 1, 2))],
    "other experts in each micro-batch, as many": [((0,), (0,)), ((1,), (1,)), ((2,), (2,))],
    "other experts on each shard": [((0, 1), (2,)), ((1,), (0, 2)), ((2,), (0,))],
    "an expert of each block that no rank reaches": [((0,), (2,)), ((2, 0), (0,)), ((0, 2), (2,))],
    "a block that the last micro-batch does not call": [((0, 1, 2), (0, 1, 2)), ((0, 1), (2,)), ((), ())],
}
"""For each of three micro-batches: the experts that the two ranks of a copy reach. The second copy has them the other way round."""
SUMMING = ("fsdp", "zero1", "zero2", "hsdp")


def sums_of_rank(folder: Path) -> dict[str, dict[str, Any]]:
    """On one of four ranks, for each strategy and each of `ROUTES`: all-reduces of a step, gradients that differ from those of one process,
    and parameters that no rank reached."""
    world, found = join((), folder), dict[str, dict[str, Any]]()
    for strategy, (name, routes) in itertools.product(SUMMING, ROUTES.items()):
        torch.manual_seed(0)
        plain = Mixture()
        model = copy.deepcopy(plain)
        shard(model, (Experts,), strategy, Parallel(strategy=strategy, replicate=2 if strategy == "hsdp" else 1), torch.float32, world)
        everywhere = torch.randn(3, 4, 5, 4)
        for number, pair in enumerate(routes):
            for rank in range(4):
                plain(everywhere[number, rank], pair[(rank + rank // 2) % 2]).square().sum().backward()
        reached = set[str]()
        own = [(everywhere[number, world.rank], pair[(world.rank + world.rank // 2) % 2]) for number, pair in enumerate(routes)]
        calls = step(model, world, strategy, own, reached)
        right = {key: torch.zeros_like(other) if other.grad is None else other.grad for key, other in plain.named_parameters()}
        gradients: list[tuple[str, Any]] = [(key, parameter.grad) for key, parameter in model.named_parameters()]
        wrong = [key for key, gradient in gradients if not torch.allclose(gradient.full_tensor(), right[key], 1e-5, 1e-6)]
        missed = sharding.find_unreached(model, reached, world) == [key for key, other in plain.named_parameters() if other.grad is None]
        found[f"{strategy}: {name}"] = {"all-reduces": calls, "wrong": wrong, "unreached found": missed}
    leave()
    return found


def step(model: nn.Module, world: World, strategy: Any, micros: list[tuple[torch.Tensor, tuple[int, ...]]], reached: set[str]) -> int:
    """Forward and backward of a step; how many all-reduces it took."""
    calls: list[int] = []
    real = torch.distributed.all_reduce
    torch.distributed.all_reduce = lambda *args, **kwargs: (calls.append(1), real(*args, **kwargs))[1]  # type: ignore[assignment]
    for number, (hidden, chosen) in enumerate(micros):
        sharding.prepare_backward(model, strategy, number == len(micros) - 1)
        loss = world.size * model(hidden, chosen).square().sum()
        handles = sharding.watch_reached(model, reached)
        loss.backward()
        for handle in handles:
            handle.remove()
    torch.distributed.all_reduce = real
    return len(calls)


@pytest.mark.skipif(not sharding.FILLS_UNUSED, reason="torch before 2.13 cannot reduce zeros for parameters that a batch did not reach")
def test_gradients_are_right_whatever_ranks_and_micro_batches_reach(tmp_path: Path) -> None:
    ranks = fork_server.run_ranks(4, sums_of_rank, tmp_path)
    assert all(found == ranks[0] for found in ranks) and len(ranks[0]) == len(SUMMING) * len(ROUTES)
    for name, found in ranks[0].items():
        copies = 3 if name.startswith("hsdp") else 0
        assert found["all-reduces"] == copies, (name, "of hsdp one for each of two blocks and the root, not for each micro-batch")
        assert found["wrong"] == [] and found["unreached found"], (name, found)


class Words(nn.Module):
    """An embedding, a head and a list of parameters that are each larger than a block, and a small layer."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 3)
        self.blocks = nn.ModuleList([Block()])
        self.small = nn.Linear(3, 3, bias=False)
        self.head = nn.Linear(3, 9, bias=False)
        self.loose = nn.ParameterList([nn.Parameter(torch.ones(20))])
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.small(self.blocks[0](self.embedding(ids)))) * self.loose[0].sum()


@pytest.mark.parametrize(("tied", "own"), [(False, ["blocks.0", "embedding", "head"]), (True, ["blocks.0"])])
def test_large_layers_outside_blocks_are_units_of_their_own_unless_they_are_tied(
    tmp_path: Path, world: World, tied: bool, own: list[str]
) -> None:
    plain, model = Words(tied), Words(tied)
    model.load_state_dict(plain.state_dict())
    layout = shard(model, (Block,), "fsdp", config(tmp_path).parallel, torch.float32, world)
    check_sharding(model, (Block,), layout, world, HERE)
    assert sorted(name for name, module in model.named_modules() if isinstance(module, FSDPModule)) == ["", *own]
    ids = torch.tensor([[1, 2, 8]])
    for each in (plain, model):
        each(ids).square().sum().backward()
    gathered = {name for name, parameter in model.named_parameters() if not isinstance(parameter, DTensor)}
    assert not gathered
    for (name, parameter), (_, right) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert isinstance(parameter.grad, DTensor) and right.grad is not None
        torch.testing.assert_close(parameter.grad.full_tensor(), right.grad, msg=name)


def test_an_adapted_layer_is_no_unit_of_its_own(tmp_path: Path) -> None:
    """DoRA reads the weight of the layer that it adapts without calling it, so that no hook would gather it."""
    model = Words(tied=False)
    adapted = nn.Module()
    adapted.base_layer, model.head = model.head, adapted  # type: ignore[assignment]
    assert sharding.find_units(model, (Block,)) == [model.blocks[0], model.embedding]


def test_offloaded_shards_are_in_host_memory(tmp_path: Path, world: World) -> None:
    on_gpu = dataclasses.replace(world, device=torch.device("cuda", 1))
    assert sharding.choose_home(config(tmp_path).parallel.offload, on_gpu) == torch.device("cuda", 1)
    assert sharding.choose_home(config(tmp_path, ("parallel.offload", "true")).parallel.offload, on_gpu) == torch.device("cpu")


def test_shards_on_another_device_are_noticed(tmp_path: Path, world: World) -> None:
    model = Stack()
    layout = shard(model, (Block,), "fsdp", config(tmp_path).parallel, torch.float32, world)
    with pytest.raises(RuntimeError, match="is kept on cpu, not on cuda"):
        check_sharding(model, (Block,), layout, world, torch.device("cuda"))


def test_offloading_changes_no_number(tmp_path: Path, world: World) -> None:
    """On a CPU, where the product refuses it since nothing would be saved; the policy and all that follows from it run nonetheless."""
    found = []
    for asked in ("false", "true"):
        torch.manual_seed(0)
        model = Stack()
        shard(model, (Block,), "fsdp", config(tmp_path, ("parallel.offload", asked)).parallel, torch.float32, world)
        model(torch.ones(2, 3)).sum().backward()
        found.append([clipped(model, 0.1), *(p.grad.full_tensor().tolist() for p in model.parameters())])
    assert found[0] == found[1]


@pytest.mark.usefixtures("world")
def test_a_moment_of_an_offloaded_weight_is_that_of_the_optimizer() -> None:
    """The mesh is one of GPUs, the weight and its moments are on the host. A copy on the GPU would be filled from a checkpoint in vain."""
    mesh = DeviceMesh("cuda", [0], _init_backend=False)
    spec = DTensorSpec(mesh, (Shard(0),), TensorMeta(torch.Size((4, 3)), (3, 1), torch.float32))
    whole = DTensor(torch.ones(4, 3), spec, requires_grad=False)
    moment = torch.zeros(4, 3)
    seen = sharding.shard_like(whole, moment)
    assert seen.device_mesh == mesh and seen.placements == whole.placements and seen.shape == whole.shape
    assert seen.to_local().data_ptr() == moment.data_ptr()


def test_gradients_over_several_meshes_are_clipped_to_one_norm(world: World) -> None:
    plain, model = Stack(), Stack()
    model.load_state_dict(plain.state_dict())
    for module, axis in ((model.blocks[0], "left"), (model.blocks[1], "right"), (model, "root")):
        fully_shard(module, mesh=init_device_mesh("cpu", (1,), mesh_dim_names=(axis,)))
    assert [len(group) for group in sharding.group_by_layout(model.parameters()).values()] == [2, 2, 2]
    for each in (plain, model):
        each(100 * torch.ones(4, 3)).sum().backward()
    right = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
    assert clipped(model, 0.5) == pytest.approx(float(right), rel=1e-6)
    for parameter, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), expected.grad)
