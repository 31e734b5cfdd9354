"""Collectives of ranks: every rank gets the same result, and the failure of one is a timely failure of all."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from overtone.finetune.distributed.process_group import (
    World,
    backends,
    broadcast_from_main,
    check_world,
    gather_from_ranks,
    gather_on_main,
    idle_gpus,
    join,
    leave,
    run_on_all,
    run_on_main,
    sum_over_data_ranks,
    sum_over_ranks,
)
from overtone.finetune.errors import ElsewhereError, UserError
from tests.finetune import fork_server


def outcome(agree: Callable[[World, Callable[[], Any]], Any], world: World, action: Callable[[], Any]) -> Any:
    """Result or error of an agreement."""
    try:
        return agree(world, action)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def agreements_of_rank(folder: Path) -> dict[str, Any]:
    """On one of two ranks: what each agreement gives, and what it gives where one rank fails."""
    world = join((), folder)
    rank = world.rank

    def failing(where: int, error: Exception) -> Callable[[], int]:
        def action() -> int:
            if rank == where:
                raise error
            return rank

        return action

    found = {
        "size": world.size,
        "main": world.is_main,
        "sums": sum_over_ranks(world, [rank + 1.0, 0.1]),
        "share": broadcast_from_main(world, {"from": rank, "text": "Æ", "nothing": None, "list": [[]]}),
        "gather": gather_from_ranks(world, "long" * rank),
        "gather on 0": gather_on_main(world, ["long" * rank]),
        "together": outcome(run_on_all, world, lambda: rank),
        "user error on 1": outcome(run_on_all, world, failing(1, UserError("the disk is full"))),
        "defect on 0": outcome(run_on_all, world, failing(0, KeyError("ours"))),
        "once": outcome(run_on_main, world, lambda: ["computed on", rank]),
        "once fails": outcome(run_on_main, world, failing(0, UserError("no such file"))),
        "afterwards": sum_over_ranks(world, [1.0]),
    }
    leave()
    return found


def test_collectives_work_with_a_single_rank(world: World) -> None:
    assert (world.rank, world.size, world.is_main) == (0, 1, True)
    assert dist.get_world_size() == 1
    assert sum_over_ranks(world, [1.5, -2.0]) == [1.5, -2.0]
    assert broadcast_from_main(world, {"a": [1, None, "Æ"]}) == {"a": [1, None, "Æ"]}
    assert gather_from_ranks(world, 3) == [3] == gather_on_main(world, 3)
    assert run_on_all(world, lambda: 4) == 4 and run_on_main(world, lambda: [5]) == [5]
    with pytest.raises(KeyError, match="ours"):
        run_on_all(world, lambda: {}["ours"])


def test_idle_gpus_are_listed_for_each_machine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {"a": (8, 2), "b": (4, 4), "c": (1, 1), "d": (2, 1), "cpu": (0, 3)}
    ranks = [[machine, gpus] for machine, (gpus, processes) in seen.items() for _ in range(processes)]
    monkeypatch.setattr("overtone.finetune.distributed.process_group.gather_from_ranks", lambda *_: ranks)
    first, second = idle_gpus(world)
    assert first.startswith("6 of the 8 visible GPUs of a stay idle: 2 of the run's processes are there; configs/fsdp2.yaml and ddp.yaml ")
    assert second.startswith("1 of the 2 visible GPUs of d stay idle: 1 of the run's processes are there; ")


def test_a_single_process_reports_idle_gpus(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert idle_gpus(world) == []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    (line,) = idle_gpus(world)
    assert line.startswith(f"7 of the 8 visible GPUs of {platform.node()} stay idle")


def test_sums_are_exact_for_counts_beyond_single_precision(world: World) -> None:
    assert sum_over_ranks(world, [float(2**53 - 1)]) == [2**53 - 1]


def test_leaving_ends_the_group_and_one_can_join_again(tmp_path: Path) -> None:
    for _ in range(2):
        assert join((), tmp_path).size == 1
        leave()
        assert not dist.is_initialized()
    leave()


def test_a_launcher_that_fell_back_to_lone_processes_is_refused() -> None:
    check_world(1, {})
    check_world(4, {"WORLD_SIZE": "4"})
    with pytest.raises(
        UserError, match=r"4 processes were launched \(WORLD_SIZE\), but the process group has 1; start with a launch file: --launch"
    ):
        check_world(1, {"WORLD_SIZE": "4"})


def test_a_refused_process_is_in_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match="4 processes were launched"):
        join((), tmp_path)
    assert not torch.distributed.is_initialized()


def test_nothing_is_pickled_in_an_agreement(world: World) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        broadcast_from_main(world, {"tensor": torch.ones(1)})


def test_two_ranks_get_the_same_results_and_fail_together(tmp_path: Path) -> None:
    first, second = fork_server.run_ranks(2, agreements_of_rank, tmp_path)
    assert (first["main"], second["main"]) == (True, False) and first["size"] == second["size"] == 2
    assert first["sums"] == second["sums"] == [3.0, 0.2]
    assert first["share"] == second["share"] == {"from": 0, "text": "Æ", "nothing": None, "list": [[]]}
    assert first["gather"] == second["gather"] == ["", "long"]
    assert (first["together"], second["together"]) == (0, 1)
    assert second["user error on 1"] == "UserError: the disk is full"
    assert first["user error on 1"] == "ElsewhereError: rank 1 failed: the disk is full"
    assert first["defect on 0"] == "KeyError: 'ours'" and second["defect on 0"] == "RuntimeError: rank 0 failed: KeyError: 'ours'"
    assert first["once"] == second["once"] == ["computed on", 0]
    assert "no such file" in first["once fails"] and second["once fails"].startswith("ElsewhereError: rank 0 failed")
    assert first["afterwards"] == second["afterwards"] == [2.0], "a failure leaves the ranks in step"


def test_the_backend_depends_on_the_device() -> None:
    """With nccl alone, a sum over gradients that are kept in host memory fails."""
    assert backends("cpu") == "gloo"
    assert backends("cuda") == "cpu:gloo,cuda:nccl"


@pytest.mark.parametrize(("environ", "begun"), [({"LOCAL_RANK": "3"}, [(3, "cpu:gloo,cuda:nccl")]), ({}, [])])
def test_on_gpus_both_backends_start_before_accelerate_would_start_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environ: dict[str, str], begun: list[tuple[int, str]]
) -> None:
    found: list[tuple[int, str]] = []
    chosen: list[int] = []

    class ReachedError(Exception):
        pass

    def accelerate(**_: object) -> None:
        raise ReachedError

    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend: found.append((chosen[-1], backend)))
    monkeypatch.setattr("overtone.finetune.distributed.process_group.Accelerator", accelerate)
    with pytest.raises(ReachedError):
        join((), tmp_path)
    assert found == begun


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before it joins any other, so that nothing waits and nothing is loaded; of many that are too many, one says it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for rank, kind in ((2, UserError), (3, ElsewhereError)):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        with pytest.raises(UserError, match=rf"^more processes than GPUs .* has 2, and this is its process number {rank + 1}; ") as caught:
            join((), tmp_path)
        assert type(caught.value) is kind
    assert not dist.is_initialized()


def test_tensor_parallel_ranks_load_the_same_data(world: World) -> None:
    of_eight = [dataclasses.replace(world, rank=rank, size=8, tensor=2) for rank in range(8)]
    assert [(each.data_rank, each.data_size) for each in of_eight] == [(rank // 2, 4) for rank in range(8)]
    assert (world.data_rank, world.data_size) == (0, 1)
    assert sum_over_data_ranks(world, [3.0, 0.5]) == [3.0, 0.5]
    assert sum_over_data_ranks(of_eight[0], [3.0]) == [1.5], "what a group holds alike counts once"
