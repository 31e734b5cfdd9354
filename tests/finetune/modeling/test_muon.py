"""Muon: torch's own numbers on one process, the same update however a matrix is sharded, and the settings it refuses."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from overtone.finetune.config import Config, Parallel, Train
from overtone.finetune.distributed import sharding, tensor_parallel
from overtone.finetune.distributed.process_group import World, join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import muon
from overtone.finetune.modeling.optimizers import describe_rules, make_optimizer, sharded_state, update_parameters
from tests.finetune import fork_server, tiny


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.gate, self.down = nn.LayerNorm(6), nn.Linear(6, 10), nn.Linear(6, 10, bias=False), nn.Linear(10, 6)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normal = self.norm(hidden)
        return hidden + self.down(torch.tanh(self.up(normal)) * self.gate(normal))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks, self.head = nn.Embedding(50, 6), nn.ModuleList([Block(), Block()]), nn.Linear(6, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden).clone()  # no view: fully_shard warns of those


def matrices_of(model: Stack) -> list[nn.Parameter]:
    return [parameter for parameter in model.blocks.parameters() if parameter.dim() == 2]


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_on_one_process_it_is_torch_s_muon_and_torch_s_adamw(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """To the last bit. torch always multiplies in bf16; under fp32 it is made not to."""
    if precision == "fp32":
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    torch.manual_seed(0)
    own = Stack()
    right = copy.deepcopy(own)
    train = Train.model_validate({"optimizer": "muon", "momentum": 0.9, "weight_decay": 0.1, "precision": precision})
    optimizer = make_optimizer(own, train, (Block,))
    matrices = matrices_of(right)
    rest = [parameter for parameter in right.parameters() if all(parameter is not matrix for matrix in matrices)]
    decays = [right.head.weight]
    others: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(decays, betas=(0.9, 0.95), weight_decay=0.1, fused=True),
        torch.optim.AdamW([each for each in rest if each is not decays[0]], betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]
    before = [parameter.detach().clone() for parameter in right.parameters()]
    for step in range(5):
        ids = torch.arange(24).reshape(4, 6) + step
        for model in (own, right):
            model(ids).square().sum().backward()
        update_parameters(optimizer, 0.02 / (step + 1))
        for other in others:
            other.param_groups[0]["lr"] = 0.02 / (step + 1)
            other.step()
            other.zero_grad()
    assert [len(matrices), len(rest)] == [6, 11] and all(parameter.grad is None for parameter in own.parameters())
    for start, found, expected in zip(before, own.parameters(), right.parameters(), strict=True):
        assert torch.equal(found, expected) and not torch.equal(start, found)


@pytest.mark.parametrize("shape", [(40, 90), (90, 40), (64, 64)])
def test_singular_values_end_near_one_and_vectors_stay(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    matrix = torch.randn(shape)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    found = muon.orthogonalize(matrix)
    within = left.T @ found @ right.T
    assert found.shape == shape and torch.allclose(left @ within @ right, found, atol=1e-4), "in the same spaces"
    assert torch.allclose(within, torch.diag(within.diag()), atol=1e-3)
    assert within.diag().min() > 0.3 and within.diag().max() < 1.3 and within.diag().median() > 0.6
    assert not muon.orthogonalize(torch.zeros(shape)).any(), "no gradient, no update"


def test_an_update_has_the_size_of_adamw_s() -> None:
    """Liu et al. 2025, section 2.2: a root mean square of 0.2 to 0.4 of the learning rate, whatever the shape of the matrix."""
    torch.manual_seed(2)
    for shape in ((32, 128), (128, 32), (96, 96)):
        layer = nn.Linear(shape[1], shape[0], bias=False)
        before = layer.weight.detach().clone()
        optimizer = make_optimizer(layer, Train(optimizer="muon", weight_decay=0.0, precision="fp32"), (nn.Linear,))
        layer.weight.grad = torch.randn(shape)
        update_parameters(optimizer, 0.01)
        assert 0.15 < float((layer.weight.detach() - before).square().mean().sqrt()) / 0.01 < 0.4, shape


def muon_of_rank(folder: Path) -> dict[str, dict[str, Any]]:
    """On one of two or four ranks, for each strategy: the losses of three steps beside those of one process, which matrices come out as
    the whole ones do, and how many this rank has orthogonalized."""
    plans: tensor_parallel.Plans = {tensor_parallel.class_path(Block()): {"up": "outputs", "down": "inputs", "gate": "outputs"}}
    world, found = join((), folder), dict[str, dict[str, Any]]()
    torch.manual_seed(0)
    whole = Stack()
    rows = torch.arange(24).reshape(4, 6)
    of_two = {"ddp": Parallel(strategy="ddp"), "zero1": Parallel(strategy="zero1"), "zero2": Parallel(strategy="zero2")}
    of_four = {"hsdp": Parallel(strategy="hsdp", replicate=2), "tensor": Parallel(strategy="fsdp", tensor=2)}
    orthogonalize = muon.orthogonalize
    for name, parallel in {"fsdp": Parallel(strategy="fsdp"), **(of_four if world.size == 4 else of_two)}.items():
        plain, model = copy.deepcopy(whole), copy.deepcopy(whole)
        config = Config.model_construct(train=Train(optimizer="muon", precision="fp32"), parallel=parallel)
        assert parallel.strategy != "auto"
        sharding.shard(model, (Block,), parallel.strategy, config.parallel, sharding.compute_dtype(config.train.precision), world, plans)
        own, right = (make_optimizer(each, config.train, (Block,)) for each in (model, plain))
        shares, group = world.size // parallel.tensor, world.rank // parallel.tensor  # ranks that share matrices see the same rows
        work, losses = 0, []
        for _ in range(3):
            losses.append([float(each(rows).detach().square().sum()) for each in (plain, model)])
            sharding.reshard(model)
            sharding.prepare_backward(model, parallel.strategy, last=True)
            (shares * model(rows.chunk(shares)[group]).square().sum()).backward()  # fully_shard averages over the shares
            with mock.patch.object(muon, "orthogonalize", side_effect=orthogonalize) as counted:
                update_parameters(own, 0.02)
            work += counted.call_count
            plain(rows).square().sum().backward()
            update_parameters(right, 0.02)
        parts = [sharding.shard_like(matrix, sharding.local_shard(matrix)) for matrix in matrices_of(model)]
        wholes = [part.full_tensor() for part in parts]
        exact = []
        for start in range(0, len(parts), world.size):
            window = parts[start : start + world.size]
            results = muon.orthogonalize_each(window, [sharding.local_shard(part) for part in window])
            exact += [sharding.shard_like(part, result).full_tensor() for part, result in zip(window, results, strict=True)]
        found[name] = {
            "losses": losses,
            "exact": [torch.equal(one, orthogonalize(matrix)) for one, matrix in zip(exact, wholes, strict=True)],
            "work": work,
            "kinds": sorted({kind for state in sharded_state(own).values() for kind in state}),
        }
    leave()
    return found


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_on_several_ranks_whole_matrices_are_orthogonalized_once(count: int, tmp_path: Path) -> None:
    """Losses of three steps within 1e-6 of one process under every strategy. Orthogonalizing each rank's rows, as torch's Muon does there,
    differs in the first digits."""
    ranks = fork_server.run_ranks(count, muon_of_rank, tmp_path)
    ways = ["fsdp", *(["ddp", "zero1", "zero2"] if count == 2 else ["hsdp", "tensor"])]
    assert [[*found] for found in ranks] == [ways] * count
    for way in ways:
        for found in ranks:
            assert found[way]["exact"] == [True] * 6, (way, "the same bits as of the whole matrix")
            assert found[way]["kinds"] == ["exp_avg", "exp_avg_sq", "momentum_buffer"]
            one, other = (torch.tensor(losses) for losses in zip(*found[way]["losses"], strict=True))
            assert torch.allclose(other, one, rtol=1e-6, atol=0) and one[-1] < 0.9 * one[0], (way, one, other)
        assert sum(found[way]["work"] for found in ranks) == 3 * 6, (way, "each matrix on one rank, in each of three steps")


def test_a_matrix_that_only_some_ranks_share_is_refused(world: World) -> None:
    del world
    mesh = DeviceMesh("cpu", [0, 1], _init_backend=False)
    spec = DTensorSpec(mesh, (Shard(0),), TensorMeta(torch.Size((4, 3)), (3, 1), torch.float32))
    with pytest.raises(UserError, match=r"muon: blocks\.0\.gate is sharded over 2 of the 1 ranks, .* use adamw, or remove"):
        muon.check_layout("blocks.0.gate", DTensor(torch.ones(4, 3), spec, requires_grad=False))


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ([("model.lora", "{rank: 2}")], r"muon with model\.lora: .* not the update B·A of the layer; use adamw or adamw_8bit"),
        ([("parallel.offload", "true")], r"muon with parallel\.offload: .* on the host; use adamw or adamw_8bit"),
    ],
)
def test_settings_incompatible_with_muon_are_refused(tmp_path: Path, overrides: list[tuple[str, str]], problem: str) -> None:
    chosen = tiny.config_in(tmp_path, *overrides)
    muon.check(chosen.train, chosen.model, chosen.parallel)
    with pytest.raises(UserError, match=problem):
        chosen = tiny.config_in(tmp_path, ("train.optimizer", "muon"), *overrides)
        muon.check(chosen.train, chosen.model, chosen.parallel)


def test_the_parameters_that_muon_updates_are_reported_and_none_is_refused() -> None:
    model = Stack()
    assert (
        describe_rules(make_optimizer(model, Train(optimizer="muon"), (Block,)))
        == "optimizer: muon for 360 parameters, adamw for 377 parameters"
    )
    assert describe_rules(make_optimizer(model, Train(), (Block,))) is None
    with pytest.raises(UserError, match=r"train\.optimizer: muon would have no effect: no trained matrix is in a block"):
        make_optimizer(model, Train(optimizer="muon"))


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit"])
def test_a_momentum_is_refused_without_muon(optimizer: str, tmp_path: Path) -> None:
    config = tiny.config_in(tmp_path, ("train.optimizer", optimizer), ("train.momentum", "0.9"))
    with pytest.raises(UserError, match=rf"^train.momentum: 0.9 has no effect with train.optimizer: {optimizer}; set .* or remove"):
        muon.check(config.train, config.model, config.parallel)
    chosen = tiny.config_in(tmp_path, ("train.optimizer", optimizer), ("train.momentum", "0.95"))
    muon.check(chosen.train, chosen.model, chosen.parallel)
