"""`ddp` avoids needless copies of weights and gradients, and its gradients are those of one process."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from overtone.finetune.config import Config, Parallel, Train
from overtone.finetune.distributed import ddp_replication, sharding
from overtone.finetune.distributed.ddp_replication import split_into_buckets
from overtone.finetune.distributed.process_group import World, join, leave
from overtone.finetune.modeling.optimizers import make_optimizer, restore_state, update_parameters
from tests.finetune import fork_server, tiny


class Model(nn.Module):
    """A table that is also the head, a layer, and one that only some batches reach."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer, self.seldom = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor, seldom: bool = True) -> dict[str, Tensor]:
        hidden = torch.tanh(self.layer(self.table(ids)))
        return {"loss": self.head(self.seldom(hidden) if seldom else hidden).float().square().sum()}


IDS = torch.tensor([[1, 2, 4], [0, 2, 3]])


def replicated(folder: Path, world: World, precision: str) -> tuple[Model, Model]:
    """A plain model, and the same under `ddp`."""
    torch.manual_seed(0)
    plain = Model()
    model = copy.deepcopy(plain)
    chosen = tiny.config_in(folder, ("train.precision", precision))
    sharding.shard(model, (), "ddp", chosen.parallel, sharding.compute_dtype(chosen.train.precision), world)
    return plain, model


def check_gradients(model: nn.Module, plain: nn.Module) -> None:
    for (name, own), right in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert isinstance(own, DTensor), name
        assert (own.grad is None) == (right.grad is None), name
        if right.grad is not None:
            assert torch.equal(own.grad.full_tensor(), right.grad), name


def test_in_fp32_modules_compute_with_the_masters_themselves(tmp_path: Path, world: World) -> None:
    plain, model = replicated(tmp_path, world, "fp32")
    masters = {name: parameter.to_local().data_ptr() for name, parameter in model.named_parameters()}  # type: ignore[attr-defined]
    for number, ids in enumerate(IDS):
        sharding.prepare_backward(model, "ddp", last=number == 1)
        loss = model(ids)["loss"]
        assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == masters
        assert model.head.weight is model.table.weight
        loss.backward()
        plain(ids)["loss"].backward()
    check_gradients(model, plain)
    replica = sharding.replica_of(model)
    assert replica is not None and all(weight.working.grad is None for weight in replica.weights)


def test_a_second_backward_adds_to_the_gradients(tmp_path: Path, world: World) -> None:
    for precision in ("fp32", "bf16"):
        _, model = replicated(tmp_path, world, precision)
        found = []
        for _ in range(2):
            model(IDS)["loss"].backward()
            found.append([parameter.grad.full_tensor().clone() for parameter in model.parameters()])
        assert all(torch.equal(2 * once, twice) for once, twice in zip(*found, strict=True))


@pytest.mark.parametrize("bucket", [ddp_replication.BUCKET, 1], ids=["in one bucket with others", "in a bucket of its own"])
def test_parameters_that_a_step_does_not_reach_have_no_gradient(
    bucket: int, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ddp_replication, "BUCKET", bucket)
    for precision in ("fp32", "bf16"):
        _, model = replicated(tmp_path, world, precision)
        for seldom in (False, True, False):
            model(IDS, seldom=seldom)["loss"].backward()
            assert {name for name, parameter in model.named_parameters() if parameter.grad is None} == (
                set() if seldom else {"seldom.weight", "seldom.bias"}
            )
            model.zero_grad(set_to_none=True)


def test_in_bf16_weights_are_cast_once_a_step_and_gradients_added_in_fp32(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, model = replicated(tmp_path, world, "bf16")
    half = copy.deepcopy(plain).bfloat16()
    casts, cast = [], torch._foreach_copy_

    def counted(targets: list[Tensor], sources: list[Tensor]) -> None:
        casts.extend(target.dtype for target in targets if target.dtype == torch.bfloat16)
        cast(targets, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", counted)
    sums = [torch.zeros_like(parameter) for parameter in plain.parameters()]
    for ids in (IDS, IDS + 1, IDS + 2):
        sharding.prepare_backward(model, "ddp", last=int(ids.max()) == 6)
        for each in (model, half):
            each(ids)["loss"].backward()
        for total, parameter in zip(sums, half.parameters(), strict=True):
            assert parameter.grad is not None
            total += parameter.grad
        half.zero_grad(set_to_none=True)
    assert len(casts) == len(sums), "one cast of each weight for three micro-batches"
    for own, total in zip(model.parameters(), sums, strict=True):
        assert own.grad.dtype == torch.float32 and torch.equal(own.grad.full_tensor(), total)


def test_floating_inputs_are_cast_to_the_compute_type(tmp_path: Path, world: World) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    chosen = tiny.config_in(tmp_path, ("train.precision", "bf16"))
    sharding.shard(model, (), "ddp", chosen.parallel, sharding.compute_dtype(chosen.train.precision), world)
    assert model(torch.ones(2, 3)).dtype == torch.bfloat16


def test_buckets_are_filled_up_to_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddp_replication, "BUCKET", 40)
    assert split_into_buckets([3, 3, 4, 1, 50, 2, 8]) == [3, 1, 1, 2]
    assert split_into_buckets([50, 1]) == [1, 1]


def gradients_of_rank(folder: Path) -> dict[str, Any]:
    """On one of three ranks: the all-reduces of each micro-batch, and the gradients of two steps beside those of one process."""
    world, found, sent = join((), folder), dict[str, Any](), list[int]()
    reduce = dist.all_reduce

    def counted(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        sent.append(tensor.numel())
        return reduce(tensor, *arguments, **options)

    torch.manual_seed(0)
    plain = Model()
    model = copy.deepcopy(plain)
    config = Config.model_construct(train=Train(precision="fp32"), parallel=Parallel(strategy="ddp"))
    with mock.patch.object(ddp_replication, "BUCKET", 4 * 24), mock.patch.object(dist, "all_reduce", counted):  # three buckets
        sharding.shard(model, (), "ddp", config.parallel, sharding.compute_dtype(config.train.precision), world)
        for step in range(2):
            for micro in range(2):  # only one rank's last micro-batch reaches all of the model
                sent.clear()
                sharding.prepare_backward(model, "ddp", last=micro == 1)
                shares = [plain(IDS + rank, seldom=step == 0 or (rank, micro) == (2, 1))["loss"] for rank in range(3)]
                torch.stack(shares).mean().backward()
                model(IDS + world.rank, seldom=step == 0 or (world.rank, micro) == (2, 1))["loss"].backward()
                found[f"sent {step} {micro}"] = len(sent)
            both = list(zip(model.named_parameters(), plain.parameters(), strict=True))
            wrong = [name for (name, own), right in both if not torch.allclose(whole(own.grad), whole(right.grad), rtol=1e-5, atol=1e-6)]
            found[f"wrong {step}"] = wrong
            found[f"digest {step}"] = [whole(own.grad).double().sum().item() for (_, own), _ in both]
            model.zero_grad(set_to_none=True)
            plain.zero_grad(set_to_none=True)
    leave()
    return found


def whole(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def test_on_three_ranks_gradients_are_averaged_once_a_step_bucket_by_bucket(tmp_path: Path) -> None:
    """Also those of a layer that only one of the ranks has reached: the others have zeros for it, and the same gradient afterwards."""
    ranks = fork_server.run_ranks(3, gradients_of_rank, tmp_path)
    assert all(found == ranks[0] for found in ranks)
    assert [ranks[0][f"sent {step} {micro}"] for step in range(2) for micro in range(2)] == [0, 3, 0, 3]
    assert ranks[0]["wrong 0"] == ranks[0]["wrong 1"] == []


def updates_of_rank(folder: Path) -> dict[str, Any]:
    """On one of two ranks: the gradients, norms and weights of the first two steps after a resume."""
    world, found = join((), folder), dict[str, Any]()
    precisions: tuple[Literal["fp32", "bf16"], ...] = ("fp32", "bf16")
    for precision in precisions:
        torch.manual_seed(0)
        model = Model()
        config = Config.model_construct(train=Train(precision=precision), parallel=Parallel(strategy="ddp"))
        with mock.patch.object(ddp_replication, "BUCKET", 1):  # the layer that only one rank reaches has a bucket of its own
            sharding.shard(model, (), "ddp", config.parallel, sharding.compute_dtype(config.train.precision), world)
        optimizer = make_optimizer(model, Train())
        restore_state(optimizer, 3)
        for seldom in (world.rank == 1, False):  # on the first step after a resume no gradient of this process is known
            model(IDS + world.rank, seldom=seldom)["loss"].backward()
            found.setdefault(f"without {precision}", []).append([name for name, p in model.named_parameters() if p.grad is None])
            gradients = sharding.group_by_layout(p.grad for p in model.parameters() if p.grad is not None)
            found.setdefault(f"norm {precision}", []).append(sharding.gradient_norm(gradients).item())
            update_parameters(optimizer, 0.1)
        found[f"weights {precision}"] = [whole(p).double().sum().item() for p in model.parameters()]
    leave()
    return found


def test_a_weight_that_only_one_rank_reached_is_updated_on_all(tmp_path: Path) -> None:
    ranks = fork_server.run_ranks(2, updates_of_rank, tmp_path)
    assert ranks[0] == ranks[1]
    for precision in ("fp32", "bf16"):
        assert ranks[0][f"without {precision}"] == [[], ["seldom.weight", "seldom.bias"]]


def test_a_model_that_is_gone_leaves_no_weights_in_memory(tmp_path: Path, world: World) -> None:
    """A hook that held them kept 10 bytes per parameter: the memory of a GPU filled up from one model of a process to the next."""
    _, model = replicated(tmp_path, world, "bf16")
    model(IDS)["loss"].backward()
    kept = [weakref.ref(weight.working) for weight in model.__dict__["replica"].weights]
    kept += [weakref.ref(parameter) for parameter in model.parameters()]
    del model
    gc.collect()
    assert len(kept) == 10 and not any(reference() is not None for reference in kept)
